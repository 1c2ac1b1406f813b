"""What trained agents look like, side by side, in docs/pictures/.

    python benchmarks/film.py                    # agents.gif; what is not trained is trained first
    python benchmarks/film.py pong_longer        # pong_longer.gif, of this run of benchmarks/runs.toml

Each is the final policy of seed 1 in its first episode of an evaluation, by the script's own --capture-video.
"""

import json
import os
import subprocess
import sys

from common import ROOT, Parser, find, refuse
from learning_curves import command, is_peer, read_table
from moviepy import VideoFileClip, clips_array

NAMES = ["cartpole_tuned", "halfcheetah_tuned", "ant_tuned"]
SECONDS, HEIGHT, FPS = 6, 200, 20
FOLLOWED = {"HalfCheetah-v5", "Ant-v5"}  # by a camera, or they run out of the picture
LATER = {"ALE/Breakout-v5": 70, "ALE/Pong-v5": 5}  # seconds into the game: at first little happens


def call(line: list[str], **env: str) -> None:
    """Run a script to its end. If it fails, it says why."""
    done = subprocess.run(line, cwd=ROOT, env=os.environ | env)
    if done.returncode:
        raise SystemExit(done.returncode)


def film(name: str, run: dict) -> VideoFileClip:
    """The run's film; it is trained, or goes on, and is filmed, as far as that has not been done."""
    line, folder = [sys.executable, *command(run)], ROOT / f"runs/benchmarks/{name}__seed=1"
    begun = (folder / "checkpoint.pt").exists()
    where = ["--resume", str(folder)] if begun else ["--seed", "1", "--run-dir", str(folder)]
    call([*line, *where])
    if not list(folder.glob("videos/*.mp4")):
        kwargs = json.loads(json.loads((folder / "args.json").read_text())["env_kwargs"])
        kwargs |= {"camera_name": "track"} if run["env"] in FOLLOWED else {}
        line = [*line[:2], "--evaluate", str(folder), "--capture-video", "--eval-episodes", "1"]
        line += ["--env-kwargs", json.dumps(kwargs)]
        call(line, MUJOCO_GL="egl")
    [path] = folder.glob("videos/*.mp4")
    clip = VideoFileClip(str(path)).resized(height=HEIGHT)
    start = max(0, min(LATER.get(run["env"], 0), clip.duration - SECONDS))
    return clip.subclipped(start, min(start + SECONDS, clip.duration))


if __name__ == "__main__":
    parser = Parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"runs; default: {', '.join(NAMES)}")
    names, table = parser.parse_args().names, read_table()["runs"]
    runs = {name: find(table, name, "run") for name in names or NAMES}
    for name, run in runs.items():
        if is_peer(run):
            refuse(f"run {name} is stable-baselines3's, which is not filmed")
        if not (ROOT / command(run)[0]).exists():
            refuse(f"there is no {command(run)[0]}; benchmarks/learning_curves.py {name} writes it")
    clips = [film(name, run) for name, run in runs.items()]
    target = ROOT / "docs/pictures" / f"{'_'.join(names) or 'agents'}.gif"
    clips_array([clips]).write_gif(str(target), fps=FPS)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size / 1e6:.1f} MB")
