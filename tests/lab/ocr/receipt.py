# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A clinic's receipt as a picture, English and Traditional Chinese, and what of it a reading misses.

The amounts differ from seed to seed, so an answer that somebody prepared is found out. Same seed, same receipt.
"""

from __future__ import annotations

import io
import random
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from lab.errors import LabError

# Debian's fonts-wqy-zenhei; the first face of the collection. It has Latin letters and Traditional Chinese in one weight.
FONT = Path("/usr/share/fonts/truetype/wqy/wqy-zenhei.ttc")
PACKAGE = "fonts-wqy-zenhei"
SIZE = 40  # pixels: tesseract's models were trained on lines about as high
LINE = 72
MARGIN = 60
WIDTH = 1000
SHOPS = (("CHARITY CLINIC", "仁愛診所"), ("RIVERSIDE CLINIC", "河岸診所"), ("HAPPINESS CLINIC", "幸福診所"))
# Each line is in one language: beside an English word tesseract takes Chinese ones for numbers and capitals. The words are those that
# tesseract 5.5 with Debian's models read without a fault in more than a hundred receipts of this size; some, such as 治療費, it does not.
CHINESE = (
    ("掛號費", 100, 250),
    ("診察費用", 300, 900),
    ("藥品費", 120, 1999),
    ("檢驗費", 200, 2999),
    ("部分負擔", 50, 420),
    ("病房費", 800, 4999),
)
ENGLISH = (("Vaccine", 500, 3000), ("Bandage", 50, 400), ("Certificate", 100, 600))


@dataclass(frozen=True)
class Receipt:
    """A picture and what is on it: ``lines`` from top to bottom, and the ``words`` and ``amounts`` that a reading must have."""

    png: bytes
    lines: tuple[str, ...]
    words: tuple[str, ...]
    amounts: tuple[str, ...]


def render(seed: int, font: Path = FONT) -> Receipt:
    """A receipt. LabError when the font is not there."""
    chance = random.Random(f"receipt {seed}")
    shop, shop_chinese = chance.choice(SHOPS)
    date = f"{chance.randint(2024, 2026)}-{chance.randint(1, 12):02d}-{chance.randint(1, 28):02d}"
    number = str(chance.randint(100000, 999999))
    items = [(name, chance.randint(least, most)) for name, least, most in (*chance.sample(CHINESE, 4), *chance.sample(ENGLISH, 2))]
    total = sum(amount for _name, amount in items)
    rows = [(shop, ""), (shop_chinese, ""), ("Receipt", number), ("日期", date)]
    rows += [(name, str(amount)) for name, amount in items]
    rows += [("總計", str(total)), ("TOTAL", str(total))]
    words = [left for left, _right in rows]
    amounts = [right for _left, right in rows if right]
    lines = tuple(f"{left} {right}".strip() for left, right in rows)
    return Receipt(_picture(rows, _font(font)), lines, tuple(words), tuple(amounts))


def _font(path: Path) -> ImageFont.FreeTypeFont:
    try:
        return ImageFont.truetype(str(path), SIZE, index=0)
    except OSError as error:
        raise LabError(f"the receipt's font {path} is missing: apt-get install {PACKAGE}") from error


def _picture(rows: list[tuple[str, str]], font: ImageFont.FreeTypeFont) -> bytes:
    """Black on white: names at the left, amounts at one right edge."""
    image = Image.new("L", (WIDTH, 2 * MARGIN + LINE * len(rows)), 255)
    draw = ImageDraw.Draw(image)
    for row, (left, right) in enumerate(rows):
        top = MARGIN + row * LINE
        draw.text((MARGIN, top), left, font=font, fill=0)
        draw.text((WIDTH - MARGIN, top), right, font=font, fill=0, anchor="ra")
    out = io.BytesIO()
    image.save(out, "PNG", dpi=(300, 300))
    return out.getvalue()


def missing(text: str, receipt: Receipt) -> list[str]:
    """What of the receipt is not in a reading of it; [] when all is there.

    Spaces and full-width forms do not matter, and Latin words may be in either case. An amount must stand alone, as often as the
    receipt has it: ``120`` is not in ``1200``.
    """
    plain = unicodedata.normalize("NFKC", text)
    squeezed = re.sub(r"\s+", "", plain).casefold()
    lost = [word for word in receipt.words if re.sub(r"\s+", "", word).casefold() not in squeezed]
    for amount in dict.fromkeys(receipt.amounts):
        found = len(re.findall(rf"(?<![\w.,-]){re.escape(amount)}(?![\w.,-])", plain))
        if found < receipt.amounts.count(amount):
            lost.append(amount)
    return lost
