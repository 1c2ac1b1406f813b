"""agents/: checkpoints of these scripts stay readable, and play as well as agents/README.md says."""

import re
import shutil

import processes
import pytest
from conftest import ROOT

TABLE = re.findall(
    r"^\| `(\w+)` \| `(\S+\.py)\b.*\| (\S+) \|$", (ROOT / "agents/README.md").read_text(), re.M
)


def test_every_agent_is_in_the_table():
    assert {name for name, *_ in TABLE} == {path.parent.name for path in ROOT.glob("agents/*/checkpoint.pt")}
    assert len(TABLE) >= 5


@pytest.mark.long
@pytest.mark.parametrize(("name", "script", "score"), TABLE)
def test_it_plays_as_well_as_it_did(name, script, score, tmp_path):
    """Other processors round otherwise, so that some of its ten episodes may end otherwise."""
    folder = shutil.copytree(ROOT / f"agents/{name}", tmp_path / name)  # some write down what they answer
    done = processes.run(ROOT / script, "--evaluate", folder, "--eval-greedy", cwd=ROOT)
    mean = re.search(r"^mean (?:return|score) ([\d.]+)", done.stdout, re.M)
    assert mean and float(mean[1]) > 0.8 * float(score), done.stdout + done.stderr
