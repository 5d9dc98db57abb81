"""Write a few artificial rows of every data set, in their published formats.

All examples of a data set have the same length, so that its programs are compiled once.
"""

import csv
import json
import random

from tests.datasets.synthetic_mind import write_mind as write_mind_log

WORDS = ("good", "bad", "fair", "awful", "plain", "price", "team", "market", "phone", "the", "is")


def make_text(generator, words=6):
    return " ".join(generator.choices(WORDS, k=words))


def write_ag_news(folder):
    generator = random.Random(0)
    for split, rows in (("train", 40), ("test", 8)):
        with (folder / f"{split}.csv").open("w") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            for i in range(rows):
                title, words = ('"Yes", he said', 3) if i % 2 else ("", 8)  # 8 tokens in both cases
                writer.writerow([i % 4 + 1, title, make_text(generator, words)])


def write_snli(folder):
    generator = random.Random(2)
    labels = ("entailment", "neutral", "contradiction", "-")
    for split, rows in (("train", 32), ("dev", 8), ("test", 8)):
        with (folder / f"snli_1.0_{split}.jsonl").open("w") as file:
            for i in range(rows):
                pair = {"sentence1": make_text(generator), "sentence2": make_text(generator, 3)}
                file.write(json.dumps({"gold_label": labels[i % 4], **pair, "pairID": i}) + "\n")


def write_amazon(folder):
    generator = random.Random(3)
    with (folder / "reviews_Electronics_5.json").open("w") as file:
        for i in range(60):
            review = f"{make_text(generator, 4)}. {make_text(generator, 4)}."
            row = {"overall": float(i % 5 + 1), "reviewText": review, "helpful": [0, 1]}
            file.write(json.dumps(row) + "\n")


def write_mind(folder):
    write_mind_log(folder, users=8, news=40, impressions=40, seed=0, candidates=2)


WRITERS = {
    "ag": write_ag_news,
    "snli": write_snli,
    "amazon": write_amazon,
    "amazon_rating": write_amazon,
    "mind": write_mind,
}
