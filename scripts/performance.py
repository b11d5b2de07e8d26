#!/usr/bin/env python3
"""Writes the tables and plots of docs/performance.md from docs/performance/results.tsv. scripts/bench runs it.

  scripts/performance.py                      writes them
  scripts/performance.py --machine PART...    notes on which machine these parts are about to be measured

Only what is between `<!-- begin NAME -->` and `<!-- end NAME -->` is replaced in the document.
"""

import csv
import math
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs/performance.md"
FOLDER = ROOT / "docs/performance"
RESULTS = FOLDER / "results.tsv"
MACHINE = FOLDER / "machine.tsv"
# What has to be the same for results in one document.
HARDWARE = ["cores", "processor"]


def read(path):
    """The rows of a tab-separated file with a header."""
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def machine():
    """What the results depend on. Nothing of it says whose machine it is."""

    def first_line(*command):
        try:
            output = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return "not installed"
        return next(iter((output.stdout + output.stderr).splitlines()), "unknown").strip()

    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"model name\s*:\s*(.*)", cpuinfo)
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(encoding="utf-8"))
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    os.environ["PATH"] = path
    version = lambda text: (re.search(r"\d+(\.\d+)+", text) or ["unknown"])[0]
    return {
        "cores": str(os.cpu_count()),
        "processor": model[1].strip() if model else platform.machine(),
        "memory": f"{int(memory[1]) / 2**20:.0f} GiB" if memory else "unknown",
        "kernel": "Linux " + version(platform.release()),
        "Rust": version(first_line("rustc", "--version")),
        "nginx": version(first_line("nginx", "-v")),
        "qstat": version(first_line("dpkg-query", "-W", "-f", "${Version}", "qstat")),
        "xash3d-master": version(first_line(str(ROOT / "target/tools/xash3d-master/bin/xash3d-master"), "--version")),
        "NATS": version(first_line(str(ROOT / "target/tools/nats/bin/nats-server"), "--version")),
    }


def note_machine(parts):
    """Results of two machines are not mixed."""
    now = machine()
    before = {row["what"]: row["value"] for row in read(MACHINE)}
    others = {row["part"] for row in read(RESULTS)} - set(parts)
    for key in HARDWARE:
        if others and key in before and before[key] != now[key]:
            sys.exit(
                f"{RESULTS.relative_to(ROOT)} has results of another machine ({before[key]}, here {now[key]}).\n"
                "Measure all parts (scripts/bench), or remove the file first."
            )
    FOLDER.mkdir(exist_ok=True)
    lines = [f"{what}\t{value}\n" for what, value in now.items()]
    MACHINE.write_text("what\tvalue\n" + "".join(lines), encoding="utf-8")


def number(text):
    """Three significant digits, or all before the point."""
    value = float(text)
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    if value == int(value):
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3g}"


def spread(row, prefix):
    names = {"": ("median", "least", "most"), "ratio": ("ratio", "ratio_least", "ratio_most")}[prefix]
    median, least, most = (number(row[name]) for name in names)
    return median if least == most else f"**{median}** ({least}–{most})"


def escaped(text):
    return text.replace("|", "\\|")


def name_of(row):
    listed = f", {int(row['servers']):,} listed" if row["servers"] else ""
    return escaped(row["name"][:1].upper() + row["name"][1:] + listed)


def mark(row):
    return {"true": "reached", "false": "**missed**", "": ""}[row["reached"]]


def tables(rows):
    """One table for each part, in the order of the file."""
    parts = list(dict.fromkeys(row["part"] for row in rows))
    text = []
    for part in parts:
        text += [f"### `{part}`", "", "| | here | beside | ratio | target | |", "|---|---|---|---|---|---|"]
        for row in (row for row in rows if row["part"] == part):
            unit = f" {row['unit']}" if row["unit"] else ""
            beside = f"{number(row['baseline_median'])}{unit}: {row['baseline']}" if row["baseline"] else ""
            ratio = spread(row, "ratio") if row["baseline"] else ""
            cells = [name_of(row), spread(row, "") + unit, escaped(beside), ratio, row["target"], mark(row)]
            text.append("| " + " | ".join(cells) + " |")
        text.append("")
    return "\n".join(text).rstrip()


def targets(rows):
    """How many targets of each part were reached, and which were missed."""
    aimed = [row for row in rows if row["target"]]
    missed = [row for row in aimed if row["reached"] == "false"]
    text = [f"{len(aimed) - len(missed)} of {len(aimed)} targets are reached."]
    if missed:
        text += ["", "| missed | result | target |", "|---|---|---|"]
    for row in missed:
        unit = f" × {row['baseline']}" if row["baseline"] else f" {row['unit']}".rstrip()
        value = number(row["ratio"] if row["baseline"] else row["median"])
        text.append(f"| `{row['part']}`: {name_of(row)} | {value}{escaped(unit)} | {row['target']} |")
    return "\n".join(text)


def machine_table():
    lines = [f"| {row['what']} | {escaped(row['value'])} |" for row in read(MACHINE)]
    return "\n".join(["| | |", "|---|---|", *lines])


# Distinguishable also without colours, by their order in the legend and at the right end.
COLOURS = ["#1b6ca8", "#c4461f", "#3a7d2c", "#7b3fa0", "#8a6d00", "#555555"]
WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 80, 48, 104, 56


def lines_of(rows, ending):
    """(label, [(servers, value)]) of all rows whose name ends so, and of what they are compared with."""
    ours, theirs = {}, {}
    for row in rows:
        if row["servers"] and row["name"].endswith(ending):
            title = row["name"][: -len(ending)].rstrip(": ")
            ours.setdefault(title, []).append((int(row["servers"]), float(row["median"])))
            if row["baseline"]:
                theirs.setdefault(f"{title}: {row['baseline']}", []).append((int(row["servers"]), float(row["baseline_median"])))
    both = [(label, points, False) for label, points in ours.items()] + [(label, points, True) for label, points in theirs.items()]
    return [(label, sorted(points), is_baseline) for label, points, is_baseline in both if len(points) >= 3]


def plot(title, unit, lines, is_log):
    """An SVG: servers from 1,000 to 1,000,000 on a logarithmic axis."""
    values = [value for _, points, _ in lines for _, value in points]
    if is_log:
        low, high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))
        ticks = [10**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]
        share = lambda value: math.log10(value / low) / math.log10(high / low)
    else:
        step = 10 ** math.floor(math.log10(max(values)))
        step = next(step * part for part in (0.1, 0.2, 0.5, 1, 2) if max(values) / (step * part) <= 8)
        high = step * math.ceil(max(values) / step)
        ticks = [step * index for index in range(round(high / step) + 1)]
        share = lambda value: value / high
    x = lambda servers: LEFT + (WIDTH - LEFT - RIGHT) * math.log10(servers / 1000) / 3
    y = lambda value: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share(value)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13" fill="#222">',
        f"<title>{title}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#fbfbf8"/>',
        f'<text x="{LEFT}" y="26" font-size="16" font-weight="bold">{title}</text>',
    ]
    for tick in ticks:
        out.append(f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{number(str(tick))}</text>')
    for servers in (1_000, 10_000, 100_000, 1_000_000):
        out.append(f'<path d="M{x(servers):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        out.append(f'<text x="{x(servers):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{servers:,}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">listed servers</text>')
    out.append(f'<text transform="translate(20 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">{unit}</text>')
    colours = {}
    for index, (label, points, is_baseline) in enumerate(lines):
        # A baseline has the colour of what is compared with it.
        colour = colours.setdefault(label.split(":")[0], COLOURS[len(colours) % len(COLOURS)])
        dashes = ' stroke-dasharray="6 4"' if is_baseline else ""
        path = "M" + "L".join(f"{x(servers):.1f} {y(value):.1f}" for servers, value in points)
        out.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        out += [f'<circle cx="{x(servers):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>' for servers, value in points]
        at, row = LEFT + (WIDTH - LEFT - RIGHT) / 2 * (index % 2), 46 + 18 * (index // 2)
        out.append(f'<path d="M{at} {row}h26" stroke="{colour}" stroke-width="2"{dashes}/>')
        out.append(f'<text x="{at + 32}" y="{row + 4}" font-size="12">{label}</text>')
    return "\n".join([*out, "</svg>", ""])


PLOTS = [
    ("cost", "Processor time of an announcement with its handshake", "microseconds of a core", ": announcement + handshake", False),
    ("memory", "Memory of the whole program", "MiB (logarithmic)", ": memory", True),
]


def plots(rows):
    """Writes the plots, and returns the text that shows them."""
    shown = []
    for name, title, unit, ending, is_log in PLOTS:
        lines = lines_of(rows, ending)
        if lines:
            (FOLDER / f"{name}.svg").write_text(plot(title, unit, lines, is_log), encoding="utf-8")
            shown.append(f"![{title}, for 1,000 to 1,000,000 servers](performance/{name}.svg)")
    return "\n\n".join(shown)


def write_document():
    rows = read(RESULTS)
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, content in [
        ("machine", machine_table()),
        ("targets", targets(rows)),
        ("plots", plots(rows)),
        ("results", tables(rows)),
    ]:
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            sys.exit(f"{DOCUMENT.relative_to(ROOT)}: {begin} and {end} have to be there once")
        before, rest = text.split(begin)
        text = before + begin + "\n" + content + "\n" + end + rest.split(end)[1]
    DOCUMENT.write_text(text, encoding="utf-8")


if sys.argv[1:2] == ["--machine"]:
    note_machine(sys.argv[2:])
elif sys.argv[1:]:
    sys.exit(__doc__.strip())
else:
    write_document()
