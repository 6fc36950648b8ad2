"""`python -m pip` as a chapter meets it in `tests/test_colab.py`: the real pip, asked first what it would do.

Each call leaves what pip would do to Colab's environment as a report in ``$COLAB_HOME/reports``, which the tests read.
Then it is done, but into a folder of that chapter's own, as several chapters share the environment.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

HOME = Path(os.environ["COLAB_HOME"])
REPORTS, SITE = HOME / "reports", HOME / "site"


def real_pip(*arguments: str) -> None:
    # -I leaves out PYTHONPATH, on which this file stands before the real pip.
    command = [sys.executable, "-I", "-m", "pip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    # What pip says of this machine when all is well (its root user, its indexes) is not the chapter's output.
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def main(action: str, *arguments: str) -> None:
    if action != "install":
        sys.exit(f"a chapter called pip {action}: only pip install is played here, see tests/test_colab.py")
    # The repository's address stands for this checkout: what a reader gets once it is pushed.
    wanted = [os.environ["COLAB_LAB"] if a.startswith(os.environ["COLAB_ADDRESS"]) else a for a in arguments]
    REPORTS.mkdir(exist_ok=True)
    report = REPORTS / f"{len(list(REPORTS.iterdir()))}.json"
    real_pip("install", "--dry-run", "--report", str(report), *wanted)
    found = [item["download_info"]["url"] for item in json.loads(report.read_text())["install"]]
    if found:
        real_pip("install", "--no-deps", "--target", str(SITE), *found)


main(*sys.argv[1:])
