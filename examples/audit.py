"""Audit a data set: leaked and repeated pictures, suspicious captions, likely false negatives.

`counterfoil audit` writes the same findings as a page on which people decide.
"""

import argparse
import tempfile
from pathlib import Path

import counterfoil as cf
from counterfoil.audit import AuditConfig, audit_dataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="openai/clip-vit-base-patch32")
parser.add_argument("--data", default="my-photos/")
parser.add_argument("--smoke", action="store_true", help="tiny random CLIP on rendered scenes")
args = parser.parse_args()
if args.smoke:
    from _tiny import tiny_clip

    args.model, args.data = tiny_clip(Path(tempfile.mkdtemp())), "scenes:images=60"

data = cf.load_dataset(args.data)
for section in audit_dataset(data, AuditConfig(top=3), models=[cf.load_model(args.model)]):
    print(f"\n{section.title}: {section.found}")
    for finding in section.finds:
        for item in finding.items:
            print(f"  {item.image or item.caption}: {item.was!r} ({item.note})")
