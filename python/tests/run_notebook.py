"""Runs a notebook top to bottom and writes it with its outputs: ``python run_notebook.py NOTEBOOK OUTPUT``. Fails where a cell does."""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

source, target = map(Path, sys.argv[1:])
notebook = nbformat.read(source, as_version=4)
NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": source.parent}}).execute()
plots = sum("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))
assert plots >= 2, "a picture and a plot"
target.parent.mkdir(parents=True, exist_ok=True)
nbformat.write(notebook, target)
print(f"{len(notebook.cells)} cells, {plots} pictures: {target}")
