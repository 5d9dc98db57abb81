"""Long texts, and texts that are longer than in training: does distance help there?"""
