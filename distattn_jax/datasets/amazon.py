"""Amazon Electronics: predict the number of stars of a product review from its text."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from distattn_jax.data.builder import Example, TextBuilder, draw_disjoint
from distattn_jax.data.files import DataError
from distattn_jax.data.rows import read_rows

EMPTY = "empty reviews"


class Amazon(TextBuilder):
    """Amazon reviews of Electronics, 5-core version (He and McAuley 2016).

    The raw file must be the only file whose name contains Electronics and ends in .json or
    .json.gz. Each line is a JSON object with the fields `overall` (the number of stars) and
    `reviewText`. Other fields are ignored.

    From the reviews that have a text, 50,000 are drawn with a fixed seed: 40,000 for train, 5,000
    for validation and 5,000 for test. If fewer than 50,000 reviews have a text, all reviews with a
    text are used: 80 percent for train, 10 percent for validation and 10 percent for test.
    """

    # Digest: python/paddle/data/amazon_product_reviews.py in PaddlePaddle/Paddle, commit bee88c9f.
    URLS: ClassVar[dict[str, str]] = {
        "https://snap.stanford.edu/data/amazon/productGraph/categoryFiles/"
        "reviews_Electronics_5.json.gz": "md5:e4524af6c644cd044b1969bac7b62b2a"
    }
    HOMEPAGE = "https://cseweb.ucsd.edu/~jmcauley/datasets/amazon/links.html"
    SIZES: ClassVar[dict[str, int]] = {"train": 40_000, "validation": 5_000, "test": 5_000}
    PUBLISHED_ROWS: ClassVar = {"the file": 1_689_188, **SIZES}
    CLASSES = ("1", "2", "3", "4", "5")  # stars

    def find_files(self) -> dict[str, Path]:
        found = sorted(
            path
            for path in self.manual_dir.glob("*Electronics*")
            if path.name.endswith((".json", ".json.gz"))
        )
        if len(found) != 1:
            raise DataError(
                f"{self.manual_dir}: must contain one file whose name contains Electronics and "
                f"ends in .json or .json.gz; found {[path.name for path in found] or 'none'}."
            )
        return {"reviews": found[0]}

    def read_splits(self) -> dict[str, Iterable[Example]]:
        with_text = 0
        for review in self._read_reviews():
            if review["text"]:
                with_text += 1
            else:
                self.leave_out(EMPTY)
        self.info.metadata["reviews"] = with_text + self.left_out.get(EMPTY, 0)
        if with_text >= sum(self.SIZES.values()):
            sizes = list(self.SIZES.values())
        else:
            tenth = round(with_text / 10)
            sizes = [with_text - 2 * tenth, tenth, tenth]
        drawn = draw_disjoint(with_text, sizes, seed="amazon")
        splits: dict[str, list[Example]] = {split: [] for split in self.SIZES}
        reviews = (review for review in self._read_reviews() if review["text"])
        for number, review in enumerate(reviews):
            for rows, examples in zip(drawn, splits.values(), strict=True):
                if number in rows:
                    examples.append(review)
        return dict(splits)

    def _count_rows(self) -> list[tuple[str, int]]:
        return [("the file", self.info.metadata["reviews"]), *super()._count_rows()]

    def _read_reviews(self) -> Iterator[Example]:
        """Yield the text and the stars of every review. The text may be empty."""
        path = self.raw_files["reviews"]
        for line, row in read_rows(path, columns=("overall", "reviewText")):
            stars = row["overall"].removesuffix(".0")
            if stars not in self.CLASSES:
                raise DataError(
                    f"{path}:{line}: overall must be a whole number from 1 to 5; "
                    f"got {row['overall']!r}."
                )
            yield {"text": row["reviewText"].strip(), "label": stars}
