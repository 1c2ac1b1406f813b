"""What trained agents look like, side by side, in docs/pictures/agents.gif.

    python benchmarks/learning_curves.py cartpole_tuned halfcheetah_tuned ant_tuned --seeds 1
    python benchmarks/film.py cartpole_tuned halfcheetah_tuned ant_tuned

Each is the final policy of seed 1 in its first episode of an evaluation, by the script's own --capture-video.
"""

import json
import os
import subprocess
import sys

from moviepy import VideoFileClip, clips_array
from results import ROOT, TABLE, command, find, read_table, refuse

SECONDS, HEIGHT, FPS = 6, 200, 20
FOLLOWED = {"HalfCheetah-v5", "Ant-v5"}  # by a camera, or they run out of the picture


def film(name: str) -> VideoFileClip:
    """The run's film, made unless it is there."""
    folder = ROOT / "runs/benchmarks" / name / "1"
    if not (folder / "checkpoint.pt").exists():
        refuse(f"{folder} has no checkpoint: python benchmarks/learning_curves.py {name} --seeds 1")
    if not list(folder.glob("videos/*.mp4")):
        run = find(read_table(TABLE)["runs"], name, "run")
        kwargs = json.loads(json.loads((folder / "args.json").read_text())["env_kwargs"])
        kwargs |= {"camera_name": "track"} if run["env"] in FOLLOWED else {}
        line = [sys.executable, command(run)[0], "--evaluate", str(folder), "--capture-video"]
        line += ["--eval-episodes", "1", "--env-kwargs", json.dumps(kwargs)]
        subprocess.run(line, cwd=ROOT, env=os.environ | {"MUJOCO_GL": "egl"}, check=True)
    [path] = folder.glob("videos/*.mp4")
    clip = VideoFileClip(str(path)).resized(height=HEIGHT)
    return clip.subclipped(0, min(SECONDS, clip.duration))


if __name__ == "__main__":
    clips = [film(name) for name in sys.argv[1:] or refuse("which runs of benchmarks/runs.toml?")]
    target = ROOT / "docs/pictures/agents.gif"
    clips_array([clips]).write_gif(str(target), fps=FPS)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size / 1e6:.1f} MB")
