"""Synthetic log in MIND's format, in which clicks are predictable. For tests, not for results.

Titles and clicks are random. Every second word of a title belongs to the topic of the title. Every
user has a favourite topic, and most clicks of a user are on news items of this topic.
"""

import datetime
import random
from collections.abc import Sequence
from pathlib import Path

TOPICS = 8
WORDS = 40  # words of each topic, and as many words that all topics share
FAVOURITE_SHARE = 0.9  # share of clicks on the favourite topic
FIRST_DAY = datetime.datetime(2019, 11, 9)
MINIMUM = {"users": 1, "news": 4 * TOPICS, "impressions": 10, "days": 2, "candidates": 2}


def write_mind(
    folder: str | Path,
    *,
    users: int,
    news: int,
    impressions: int,
    seed: int,
    days: int = 6,
    history: int = 20,
    candidates: int = 10,
) -> None:
    """Write a synthetic MIND log: folders `train` and `dev` with news.tsv and behaviors.tsv.

    Nine tenths of the impressions are in train. The first three quarters of the news are in train,
    and the last three quarters are in dev, so that half of the news are in both folders. The log of
    dev covers a single day, the day after the last day of train.

    Args:
      folder: Folder to write to.
      users: Number of users.
      news: Number of news items.
      impressions: Number of lines of the two logs together.
      seed: Seed of all random choices.
      days: Number of days that the log of train covers.
      history: Maximum number of clicks in the history of an impression. The minimum is 0.
      candidates: Maximum number of candidates of an impression. The minimum is 2.
    """
    sizes = {"users": users, "news": news, "impressions": impressions}
    for name, value in {**sizes, "days": days, "candidates": candidates}.items():
        if value < MINIMUM[name]:
            raise ValueError(f"{name} must be at least {MINIMUM[name]}; got {value}.")
    generator = random.Random(seed)
    favourites = [generator.randrange(TOPICS) for _ in range(users)]
    titles = [_make_title(number % TOPICS, generator) for number in range(news)]
    train_lines = impressions - impressions // 10
    parts = {
        "train": (range(news * 3 // 4), range(days), train_lines),
        "dev": (range(news // 4, news), range(days, days + 1), impressions - train_lines),
    }
    for part, (numbers, part_days, lines) in parts.items():
        part_folder = Path(folder) / part
        part_folder.mkdir(parents=True, exist_ok=True)
        with (part_folder / "news.tsv").open("w") as file:
            for number in numbers:
                topic = f"topic{number % TOPICS}"
                news_row = (f"N{number}", topic, topic, titles[number], "", "", "[]", "[]")
                file.write("\t".join(news_row) + "\n")
        topics = [[n for n in numbers if n % TOPICS == topic] for topic in range(TOPICS)]
        with (part_folder / "behaviors.tsv").open("w") as file:
            for line in range(1, lines + 1):
                user = generator.randrange(users)
                time = _draw_time(part_days, generator)
                clicked = [
                    _draw_click(topics, favourites[user], generator)
                    for _ in range(generator.randint(0, history))
                ]
                count = generator.randint(2, candidates)
                shown = _draw_candidates(topics, favourites[user], count, generator)
                log_row = (str(line), f"U{user}", time, " ".join(clicked), " ".join(shown))
                file.write("\t".join(log_row) + "\n")


def _make_title(topic: int, generator: random.Random) -> str:
    """Make a title of four to twelve words. Every second word belongs to the topic."""
    kinds = (f"topic{topic}word", "word")
    count = generator.randint(4, 12)
    return " ".join(f"{kinds[i % 2]}{generator.randrange(WORDS)}" for i in range(count))


def _draw_click(topics: Sequence[Sequence[int]], favourite: int, generator: random.Random) -> str:
    """Draw a news item that the user clicks, and return its id.

    The news item usually belongs to the favourite topic of the user.
    """
    topic = favourite if generator.random() < FAVOURITE_SHARE else generator.randrange(TOPICS)
    return f"N{generator.choice(topics[topic])}"


def _draw_candidates(
    topics: Sequence[Sequence[int]], favourite: int, count: int, generator: random.Random
) -> list[str]:
    """Draw the candidates of an impression: one or two clicked, the others unclicked.

    The unclicked news items do not belong to the favourite topic.

    Returns:
      Ids of the candidates in random order. Each id has the suffix -1 if the candidate was clicked
      and -0 otherwise.
    """
    clicks = 2 if count > 2 and generator.random() < 0.2 else 1
    shown = [f"{_draw_click(topics, favourite, generator)}-1" for _ in range(clicks)]
    for _ in range(count - clicks):
        topic = (favourite + generator.randrange(1, TOPICS)) % TOPICS
        shown.append(f"N{generator.choice(topics[topic])}-0")
    generator.shuffle(shown)
    return shown


def _draw_time(days: Sequence[int], generator: random.Random) -> str:
    """Draw a random time, formatted as in MIND, for example 11/13/2019 5:53:12 AM.

    The days are counted from `FIRST_DAY`.
    """
    time = FIRST_DAY + datetime.timedelta(generator.choice(days), generator.randrange(86_400))
    half = "AM" if time.hour < 12 else "PM"
    return f"{time.month}/{time.day}/{time.year} {time.hour % 12 or 12}:{time:%M:%S} {half}"
