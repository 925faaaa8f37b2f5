"""Writes what Jinja2, set up as transformers does it, makes of the templates in expressions.txt (`null`: an error).

    python make_expressions.py     # with jinja2
"""

import json
import pathlib

import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what an assistant said; what is between the marks is a part of the text."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_inner"), [], [], body).set_lineno(line)

    def _inner(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


FOLDER = pathlib.Path(__file__).parent
MESSAGES = [
    {"role": "user", "content": "Hello World", "n": 3},
    {"role": "assistant", "content": "x", "n": 1},
    {"role": "User", "content": "", "n": 2},
]
MORE = {
    "d": {"b": 1, "a": [1, {"c": None}], "C": "x'y"},
    "xs": [3, 1, 2, 2],
    "s": "  A b\tc\nd  ",
    "f": 1.5,
}

environment = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
)
environment.filters["tojson"] = tojson
texts = []
for source in (FOLDER / "expressions.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n====\n"):
    try:
        text = environment.from_string(source).render(
            messages=MESSAGES, add_generation_prompt=True, tools=None, documents=None, **MORE
        )
    except Exception:
        text = None
    texts.append({"source": source, "text": text})
whole = {"messages": MESSAGES, "more": MORE, "texts": texts}
(FOLDER / "expressions.json").write_text(json.dumps(whole, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
