"""Data sets as TensorFlow Datasets builders that need no TensorFlow.

`DATASETS` lists the names of the data sets. A class is imported when it is first accessed, as in
`from distattn_jax.datasets import AgNews`. Importing this package alone imports neither JAX nor
TensorFlow Datasets.
"""

from etils import epy

# The class of each data set, by the name of the data set.
DATASETS = {
    "ag_news": "AgNews",
    "amazon": "Amazon",
    "conll": "Conll",
    "covid_fact": "CovidFact",
    "cross_genre": "CrossGenre",
    "imdb": "Imdb",
    "mednli": "MedNli",
    "mind": "Mind",
    "mind_large": "MindLarge",
    "multi30k": "Multi30k",
    "multinli": "MultiNli",
    "nearest": "Nearest",
    "parallel_text": "ParallelText",
    "plain_text": "PlainText",
    "snli": "Snli",
    "sst": "Sst",
    "text_files": "TextFiles",
    "wmt14_de": "Wmt14De",
    "wmt14_fr": "Wmt14Fr",
}

with epy.lazy_api_imports(globals()):
    from distattn_jax.datasets.ag_news import AgNews
    from distattn_jax.datasets.amazon import Amazon
    from distattn_jax.datasets.bm25 import Bm25
    from distattn_jax.datasets.claim_builder import CandidatePairs, ClaimBuilder, load_candidates
    from distattn_jax.datasets.conll import Conll
    from distattn_jax.datasets.covid_fact import CovidFact
    from distattn_jax.datasets.cross_genre import CrossGenre
    from distattn_jax.datasets.imdb import Imdb
    from distattn_jax.datasets.mednli import MedNli
    from distattn_jax.datasets.mind import Impression, Mind, MindLarge
    from distattn_jax.datasets.multinli import MultiNli
    from distattn_jax.datasets.nearest import Nearest
    from distattn_jax.datasets.on_disk_impressions import OnDiskImpressions
    from distattn_jax.datasets.parallel_text import Multi30k, ParallelText
    from distattn_jax.datasets.plain_text import PlainText
    from distattn_jax.datasets.snli import Snli
    from distattn_jax.datasets.sst import Sst
    from distattn_jax.datasets.text_files import TextFiles
    from distattn_jax.datasets.wmt14 import Wmt14De, Wmt14Fr

__all__ = [
    "DATASETS",
    "AgNews",
    "Amazon",
    "Bm25",
    "CandidatePairs",
    "ClaimBuilder",
    "Conll",
    "CovidFact",
    "CrossGenre",
    "Imdb",
    "Impression",
    "MedNli",
    "Mind",
    "MindLarge",
    "Multi30k",
    "MultiNli",
    "Nearest",
    "OnDiskImpressions",
    "ParallelText",
    "PlainText",
    "Snli",
    "Sst",
    "TextFiles",
    "Wmt14De",
    "Wmt14Fr",
    "load_candidates",
]
