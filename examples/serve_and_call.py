"""Serve an index over HTTP and query it; with --smoke, server and client in one process."""

import argparse
import tempfile
from pathlib import Path

import counterfoil as cf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--index", type=Path, default=Path("my-index"))
parser.add_argument("--query", default="a dog in the snow")
parser.add_argument("--url", help="of a running server; by default this script starts one")
parser.add_argument("--smoke", action="store_true", help="tiny random CLIP on rendered scenes")
args = parser.parse_args()
if args.smoke:
    from _tiny import tiny_clip

    place = Path(tempfile.mkdtemp())
    model = cf.load_model(tiny_clip(place / "clip"))
    args.index = place / "index"
    cf.build_index(model, cf.load_dataset("scenes:images=60"), args.index).close()

if args.url is None and not args.smoke:
    from counterfoil.serve.run import serve

    serve(args.index)  # until Ctrl-C; then call it from another shell with --url
else:
    body = {"text": args.query, "top": 3}
    if args.url:
        import httpx

        answer = httpx.post(f"{args.url}/search", json=body)
    else:
        from starlette.testclient import TestClient

        from counterfoil.serve.app import application
        from counterfoil.serve.service import SearchService
        from counterfoil.serve.settings import ServerSettings

        with cf.open_index(args.index) as index:
            app = application(SearchService(index, None, None, None), ServerSettings())
            with TestClient(app, base_url="http://127.0.0.1") as client:
                answer = client.post("/search", json=body)
    answer.raise_for_status()
    print(answer.json())
