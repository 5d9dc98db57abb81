"""A few made-up rows of every data set, in the formats they are published in.

The examples of a set are as long as each other, so that its programs are compiled once.
"""

import csv
import json
import random

from distattn_jax.datasets.synthetic_mind import write_mind

WORDS = ("good", "bad", "fair", "awful", "plain", "price", "team", "market", "phone", "the", "is")


def text(draw, words=6):
    return " ".join(draw.choices(WORDS, k=words))


def ag_news(folder):
    draw = random.Random(0)
    for split, rows in (("train", 40), ("test", 8)):
        with (folder / f"{split}.csv").open("w") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            for i in range(rows):
                title, words = ('"Yes", he said', 3) if i % 2 else ("", 8)  # both 8 tokens
                writer.writerow([i % 4 + 1, title, text(draw, words)])


def sst(folder):
    draw = random.Random(1)
    for split, rows in (("train", 32), ("dev", 8), ("test", 8)):
        lines = ["sentence\tlabel", *(f"{text(draw)}\t{i % 2}" for i in range(rows))]
        (folder / f"{split}.tsv").write_text("".join(f"{line}\n" for line in lines))


def snli(folder):
    draw = random.Random(2)
    labels = ("entailment", "neutral", "contradiction", "-")
    for split, rows in (("train", 32), ("dev", 8), ("test", 8)):
        with (folder / f"snli_1.0_{split}.jsonl").open("w") as file:
            for i in range(rows):
                pair = {"sentence1": text(draw), "sentence2": text(draw, 3)}
                file.write(json.dumps({"gold_label": labels[i % 4], **pair, "pairID": i}) + "\n")


def amazon(folder):
    draw = random.Random(3)
    with (folder / "reviews_Electronics_5.json").open("w") as file:
        for i in range(60):
            review = f"{text(draw, 4)}. {text(draw, 4)}."
            row = {"overall": float(i % 5 + 1), "reviewText": review, "helpful": [0, 1]}
            file.write(json.dumps(row) + "\n")


def mind(folder):
    write_mind(folder, users=8, news=40, impressions=40, seed=0, candidates=5)


WRITERS = {
    "ag": ag_news,
    "sst": sst,
    "snli": snli,
    "amazon": amazon,
    "amazon_rating": amazon,
    "mind": mind,
}
