"""Tagged sentences are read from column files and CoNLL-U files. Wrong lines are named."""

import gzip

import pytest

from distattn_jax.data import DataError
from distattn_jax.data.conll import read_tagged_sentences

COLUMNS = """\
-DOCSTART- -X- O O

# sentence 1
EU NNP I-NP I-ORG
rejects VBZ I-VP O


\u00a0 NNP I-NP I-LOC
# # I-NP O
"""
SENTENCES = [
    [("-DOCSTART-", "O")],
    [("EU", "I-ORG"), ("rejects", "O")],
    [],
    [("\u00a0", "I-LOC"), ("#", "O")],  # The last line has as many columns as a word.
]
CONLLU = """\
# sent_id = 1
# text = Don't go
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
2.1\tnow\t_\tADV\t_\t_\t_\t_\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_

# sent_id = 2

1\t20 000\t_\tNUM\t_\t_\t0\troot\t_\t_
"""


def read(path):
    return [
        [(word.form, word.tag) for word in sentence] for sentence in read_tagged_sentences(path)
    ]


def test_a_column_file_has_a_word_on_each_line(tmp_path):
    (tmp_path / "train.txt").write_text(COLUMNS)
    assert read(tmp_path / "train.txt") == SENTENCES


def test_columns_may_be_separated_by_tabs_and_files_may_be_compressed(tmp_path):
    content = COLUMNS.replace(" ", "\t").replace("#\tsentence", "# sentence").replace("\n", "\r\n")
    (tmp_path / "train.conll.gz").write_bytes(gzip.compress(content.encode()))
    assert read(tmp_path / "train.conll.gz") == SENTENCES


def test_a_document_line_ends_a_sentence(tmp_path):
    (tmp_path / "train.txt").write_text("a X\n-DOCSTART- O\nb Y")
    assert read(tmp_path / "train.txt") == [[("a", "X")], [("-DOCSTART-", "O")], [("b", "Y")]]


def test_ranges_and_empty_nodes_of_conllu_files_are_skipped(tmp_path):
    (tmp_path / "train.conllu").write_text(CONLLU)
    assert read(tmp_path / "train.conllu") == [
        [("Do", "AUX"), ("n't", "PART"), ("go", "VERB")],
        [],
        [("20\u00a0000", "NUM")],
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "EU NNP B-ORG\nrejects O\n", ":2: must have 3 columns, .* got 2"),
        ("a.txt", "EU B-ORG\n\nrejects VBZ O\n", ":3: must have 2 columns, .* got 3"),
        ("a.txt", "EU\n", ":1: must have 2 columns, .* got 1"),
        ("a.txt", "EU\tNNP B-ORG\n", ":1: the tag must be one word; got 'NNP B-ORG'"),
        ("a.txt", "a\tX\n \t\tX\n", ":2: must have 2 columns, .* got 1"),
        ("a.conllu", "1\tEU\t_\tPROPN\n", ":1: must have 10 columns, .* got 4"),
        ("a.conllu", CONLLU.replace("2\tn't", "4\tn't"), ":5: the id must be 2; got '4'"),
        ("a.conllu", CONLLU.replace("VERB", "_"), r":7: the part of speech \(column 4\) is miss"),
        ("a.conllu", CONLLU.replace("\tgo\tgo", "\t \tgo"), ":7: the word is empty"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=f"{name}{message}"):
        list(read_tagged_sentences(tmp_path / name))
