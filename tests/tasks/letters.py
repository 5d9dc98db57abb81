"""Config of a tiny language model whose texts are the alphabet."""

from distattn_jax.tasks import LanguageModelConfig, LanguageModelingConfig, LanguageModelingData
from tests.train.runs import quick_run

TEXT = "abcdefghijklmno"


def make_config(folder):
    raw = folder / "raw"
    if not raw.exists():
        raw.mkdir()
        (raw / "texts.txt").write_text("\n\n".join([TEXT] * 60))
    return LanguageModelingConfig(
        name="letters",
        data=LanguageModelingData(
            directory=str(folder / "prepared"),
            manual_dir=str(raw),
            vocabulary=259,
            longest=24,
            batch_size=8,
            buckets=1,
        ),
        model=LanguageModelConfig(
            layers=1,
            heads=2,
            head_features=8,
            features=16,
            hidden_features=16,
            dropout_rate=(0.0,),
            remat=True,
        ),
        **quick_run(folder, steps=60),
    )
