"""Make notebooks/NAME.ipynb from notebooks/NAME.py: run all cells and keep small pictures.

    python docs/execute_notebooks.py [NAME ...]

The first cell shows the picture of the cell with the tag "answer", as an attachment.
"""

import base64
import io
import sys
import time
from pathlib import Path

import jupytext
import nbclient
import nbformat
from PIL import Image

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
COLOURS = 64  # of a picture; more colours need more bytes


def main(names: list[str]) -> None:
    """Execute the notebooks with these names, or all of them."""
    for path in sorted(FOLDER.glob("*.py")):
        if not names or path.stem in names:
            start = time.monotonic()
            notebook = execute(path)
            file = path.with_suffix(".ipynb")
            nbformat.write(notebook, file)
            seconds, kilobytes = time.monotonic() - start, file.stat().st_size / 1000
            print(f"{file.name}: {seconds:.0f} s, {kilobytes:.0f} kB")


def execute(path: Path) -> nbformat.NotebookNode:
    """Return the notebook of a text file, with its outputs."""
    notebook = jupytext.read(path)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # Random ids would change in each execution.
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    # Without coalesce_streams, the printed lines of a cell are split at random.
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", coalesce_streams=True
    ).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times
        for output in cell.get("outputs", []):
            shrink(output.get("data", {}))
            if "image/png" in output.get("data", {}) and "answer" in cell.metadata.get("tags", []):
                picture = {"image/png": output.data["image/png"]}
                notebook.cells[0]["attachments"] = {"answer.png": picture}
    return notebook


def shrink(data: dict[str, str]) -> None:
    """Reduce the colours of a picture in the data of an output."""
    if "image/png" in data:
        image = Image.open(io.BytesIO(base64.b64decode(data["image/png"]))).convert("RGB")
        small = io.BytesIO()
        image.quantize(COLOURS, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
        data["image/png"] = base64.b64encode(small.getvalue()).decode("ascii")


if __name__ == "__main__":
    main(sys.argv[1:])
