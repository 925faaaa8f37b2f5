"""``python python/bed COMMAND``: the commands of the test bed."""

import importlib
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent

COMMANDS = {
    "zoo": "real models against eager and Inductor: right or not, graphs, first-call time, speed",
    "ops": "op_db: samples of every op against eager",
    "modules": "module_db: samples of every module of torch.nn against eager",
    "optims": "optim_db: two compiled steps of every optimizer against eager",
    "inductor": "PyTorch's test_torchinductor.py with the backend in place of Inductor",
    "work": "whole models at their real sizes: eager, Inductor's modes, Kiln",
    "calls": "what a call costs beyond Dynamo's guards",
    "page": "an HTML page of the zoo's CSV",
}


def main():
    # The folder of the sources comes last, so that an installed kiln package is found before the sources of it.
    sys.path[:] = [path for path in sys.path if pathlib.Path(path or ".").resolve() != HERE] + [str(HERE.parent)]
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name not in COMMANDS:
        print("usage: python python/bed COMMAND [--help]\n")
        for command, text in COMMANDS.items():
            print(f"  {command:9} {text}")
        return 0 if name in ("-h", "--help") else 2
    return importlib.import_module(f"bed.{name}").main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
