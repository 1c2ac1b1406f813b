"""benchmarks/gpu.py: parts that are done stay, those that failed are tried again."""

import sys

import gpu
import pytest


@pytest.fixture
def rehearse(tmp_path, monkeypatch):
    """rehearse(*failing) runs all parts, of which these fail -> the parts that ran."""
    ran = []

    def run(*failing):
        def part(name, flags, seconds):
            ran.append(name)
            return [("failed", "CUDA, out of memory")] if name in failing else [("speed", 2.5), ("MiB", 1.0)]

        ran.clear()
        monkeypatch.setattr(gpu, "run_in_a_process", part)
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--rehearse=cpu", f"--csv={tmp_path}/gpu.csv"])
        gpu.main()
        return list(ran)

    return run


def test_what_is_done_stays_and_what_failed_is_tried_again(rehearse, tmp_path, monkeypatch, capsys):
    names = list(gpu.make_parts("cpu"))
    game = "Breakout, 8 envs on cpu"
    assert rehearse(game, "tests") == names
    assert f"{game}: failed: CUDA, out of memory" in capsys.readouterr().out
    assert rehearse() == ["tests", game]
    assert rehearse() == []
    how, values = gpu.read(tmp_path / "gpu.csv")
    assert how.endswith("a rehearsal on cpu") and set(values.values()) == {"2.5", "1"}
    assert set(values) == {(name, quantity) for name in names for quantity in ("speed", "MiB")}
    monkeypatch.setattr(gpu, "CSV", tmp_path / "gpu.csv")
    assert f"| {game} | speed: 2.5; MiB: 1 |" in gpu.table()


def test_its_time_is_limited(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "run_in_a_process", lambda *_: pytest.fail("a part ran"))
    flags = ["--rehearse=cpu", "--minutes=0.1", f"--csv={tmp_path}/gpu.csv"]
    monkeypatch.setattr(sys, "argv", ["gpu.py", *flags])
    gpu.main()
    assert "0.1 minutes are over; the same command goes on with tests" in capsys.readouterr().out


def test_a_part_that_fails_says_why():
    [(quantity, value)] = gpu.run_in_a_process("no such part", ["--rehearse=cpu"], 100)
    assert (quantity, value) == ("failed", "KeyError: 'no such part'")


def test_parts_for_a_gpu():
    """Each game beside its peer and beside the CPU."""
    parts = gpu.make_parts("cuda")
    for where in ("cuda", "cpu"):
        for how in ("", ", `--compile`", ", stable-baselines3"):
            assert f"Breakout, 64 envs{how} on {where}" in parts
    assert "variants.grpo, 500 million weights on cuda" in parts
