"""A made-up log in MIND's format, in which clicks can be foreseen: for checks, not for results.

Nobody wrote these titles and nobody clicked them. Every title has words of one topic, every user
has a favourite topic, and most clicks, before and now, are on news of it.
"""

import datetime
import random
from collections.abc import Sequence
from pathlib import Path

TOPICS = 8
WORDS = 40  # of a topic, and as many again that all topics share
FAITHFUL = 0.9  # the share of clicks on the favourite topic
FIRST_DAY = datetime.datetime(2019, 11, 9)


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
    """Writes `train` and `dev`, each with news.tsv and behaviors.tsv, line by line.

    Of the impressions nine tenths are of train. Of the news the first three quarters are, and the
    last three quarters are of dev, whose log is that of one more day.

    Args:
      folder: where they go.
      users: how many people click.
      news: how many titles there are.
      impressions: how many lines both logs have in sum.
      seed: of all that is drawn.
      days: of the log of train.
      history: clicks before an impression, at most; there may be none.
      candidates: of an impression, at most; there are at least two.
    """
    least = {"users": 1, "news": 4 * TOPICS, "impressions": 10, "days": 2, "candidates": 2}
    given = {"users": users, "news": news, "impressions": impressions}
    for name, value in {**given, "days": days, "candidates": candidates}.items():
        if value < least[name]:
            raise ValueError(f"{name} must be at least {least[name]}; got {value}.")
    draw = random.Random(seed)
    favourites = [draw.randrange(TOPICS) for _ in range(users)]
    titles = [_title(number % TOPICS, draw) for number in range(news)]
    of_train = impressions - impressions // 10
    parts = {
        "train": (range(news * 3 // 4), range(days), of_train),
        "dev": (range(news // 4, news), range(days, days + 1), impressions - of_train),
    }
    for part, (known, dates, lines) in parts.items():
        place = Path(folder) / part
        place.mkdir(parents=True, exist_ok=True)
        with (place / "news.tsv").open("w") as file:
            for number in known:
                topic = f"topic{number % TOPICS}"
                row = (f"N{number}", topic, topic, titles[number], "", "", "[]", "[]")
                file.write("\t".join(row) + "\n")
        topics = [[n for n in known if n % TOPICS == topic] for topic in range(TOPICS)]
        with (place / "behaviors.tsv").open("w") as file:
            for line in range(1, lines + 1):
                user = draw.randrange(users)
                time = FIRST_DAY + datetime.timedelta(draw.choice(dates), draw.randrange(86_400))
                before = [
                    _clicked(topics, favourites[user], draw)
                    for _ in range(draw.randint(0, history))
                ]
                shown = _shown(topics, favourites[user], draw.randint(2, candidates), draw)
                fields = (str(line), f"U{user}", _spelled(time), " ".join(before), " ".join(shown))
                file.write("\t".join(fields) + "\n")


def _title(topic: int, draw: random.Random) -> str:
    """Four to twelve words, every other one of its topic."""
    kinds = (f"topic{topic}word", "word")
    return " ".join(f"{kinds[i % 2]}{draw.randrange(WORDS)}" for i in range(draw.randint(4, 12)))


def _clicked(topics: Sequence[Sequence[int]], favourite: int, draw: random.Random) -> str:
    topic = favourite if draw.random() < FAITHFUL else draw.randrange(TOPICS)
    return f"N{draw.choice(topics[topic])}"


def _shown(
    topics: Sequence[Sequence[int]], favourite: int, count: int, draw: random.Random
) -> list[str]:
    """Candidates in any order: a click, or sometimes two, and others, all of other topics."""
    clicks = 2 if count > 2 and draw.random() < 0.2 else 1
    shown = [f"{_clicked(topics, favourite, draw)}-1" for _ in range(clicks)]
    for _ in range(count - clicks):
        topic = (favourite + draw.randrange(1, TOPICS)) % TOPICS
        shown.append(f"N{draw.choice(topics[topic])}-0")
    draw.shuffle(shown)
    return shown


def _spelled(time: datetime.datetime) -> str:
    """11/13/2019 5:53:12 AM."""
    half = "AM" if time.hour < 12 else "PM"
    return f"{time.month}/{time.day}/{time.year} {time.hour % 12 or 12}:{time:%M:%S} {half}"
