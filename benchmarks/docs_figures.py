"""The figures of docs/images that show the demo's run, drawn again.

``python -m benchmarks.docs_figures TOUR`` takes what `gradscope demo` left; the page's picture needs Chromium.
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from gradscope import measure_degeneracy, measure_pass_at_k, measure_rank
from gradscope.render.figures.style import save_figure
from gradscope.render.registry import draw_figures

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
NAMES = ("degeneracy", "passk", "rank_nulls", "rank_spectrum")


def main() -> None:
    """Draw them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tour", type=Path, help="What `gradscope demo` left.")
    tour = parser.parse_args().tour
    run, page = tour / "run", tour / "report.html"
    heldout = (run / "heldout" / f"{when}.jsonl" for when in ("before", "after"))
    results = (
        measure_degeneracy(run),
        measure_pass_at_k(*heldout),
        measure_rank(run, steps=(1, 21, 41), advantages=["logged"]),
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, figure in (drawn for result in results for drawn in draw_figures(result).items()):
            if name in NAMES:
                shutil.copy(save_figure(figure, Path(folder) / name)[1], IMAGES)
    picture = IMAGES / "report.png"
    chromium = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1080,800"]
    command = [*chromium, f"--screenshot={picture}", page.resolve().as_uri()]
    subprocess.run(command, stderr=subprocess.DEVNULL, check=True)
    Image.open(picture).quantize(64).save(picture, optimize=True)


if __name__ == "__main__":
    main()
