"""The page for a cluster: nodes, shards, and what it shows of a node that ends."""

import pathlib
import sys

import millpond
import pytest
import requests
from screen import CONTRASTS, DESKTOP, PHONE, PICTURES, TEXT_CONTRAST_MIN, js, look, picture, texts, wait

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cluster"))

from deployment import Cluster  # noqa: E402
from processes import NodePlan  # noqa: E402

SHARDS = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("nodes")
    plans = [NodePlan("first", "root,search,ingest"), NodePlan("second", "search,ingest")]
    cluster = Cluster(plans, scratch, scratch / "logs", s3=False)
    cluster.start()
    body = {"vectors": {"size": 2, "distance": "Dot"}, "shard_number": SHARDS}
    created = requests.put(f"{cluster.nodes['first'].url}/collections/docs", json=body, timeout=60)
    assert created.status_code == 200, created.text
    yield cluster
    for process in [*cluster.nodes.values(), cluster.etcd]:
        process.kill()


def test_nodes_and_shards_are_shown(browser, cluster):
    look(browser, DESKTOP)
    browser.get(f"{cluster.nodes['first'].url}/nodes")
    served = f"docs served {SHARDS} of {SHARDS} shards served, 2 copies each"
    wait(lambda: texts(browser, "#collections summary") == [served], "all shards are served")
    assert texts(browser, "#nodes th") == ["first", "second"]
    row = texts(browser, "[data-node='second'] td")
    assert row[:3] == [cluster.nodes["second"].address, "search, ingest", "1"] and row[3] == str(SHARDS), row
    wait(lambda: texts(browser, "[data-node='second'] td")[5:7] == ["0", "0"], "no flushes and merges")
    js(browser, "document.querySelector('#collections summary').click()")
    holders = texts(browser, "[data-shard] td:nth-of-type(2)")
    assert [set(names.split(", ")) for names in holders] == [{"first", "second"}] * SHARDS
    assert texts(browser, "[data-shard] td:nth-of-type(3)") == ["–"] * SHARDS
    picture(browser, PICTURES / "nodes-desktop.png")
    look(browser, PHONE, "dark")
    assert js(browser, "document.documentElement.scrollWidth") <= PHONE[0]
    found = browser.execute_script(CONTRASTS)
    assert [words for words, contrast in found["texts"] if contrast < TEXT_CONTRAST_MIN] == []
    picture(browser, PICTURES / "nodes-phone-dark.png")
    browser.execute_script("document.querySelector('#collections summary').focus()")
    cluster.nodes["second"].kill()
    wait(lambda: texts(browser, "#nodes th") == ["first"], "the node is gone")
    wait(lambda: js(browser, "document.getElementById('state').textContent") == "1 node", "the state")
    assert js(browser, "document.querySelector('#collections details').open"), "a new reading keeps it open"
    lacking = f"docs served {SHARDS} of {SHARDS} shards served, at least 1 of 2 copies each"
    wait(lambda: texts(browser, "#collections summary") == [lacking], "the missing copies")
    assert js(browser, "document.activeElement.localName") == "summary", "and it keeps the focus"
    late = "AbortSignal.timeout = () => AbortSignal.abort(new DOMException('late', 'TimeoutError'))"
    browser.execute_script(f"window.inTime = AbortSignal.timeout; {late}")
    wait(lambda: js(browser, "document.getElementById('state').textContent") == "failed", "a node that does not answer")
    browser.execute_script("AbortSignal.timeout = window.inTime")
    wait(lambda: js(browser, "document.getElementById('state').textContent") == "1 node", "the node answers again")
    cluster.etcd.kill()
    wait(lambda: "etcd does not answer" in js(browser, "document.getElementById('problem').textContent"), "an old view")


def test_a_server_without_a_cluster_says_so(browser, tmp_path):
    (tmp_path / "models").mkdir()
    server = millpond.Server(tmp_path / "models", log=tmp_path / "server.log").wait_ready()
    browser.get(f"{server.url}/nodes")
    wait(lambda: not js(browser, "document.getElementById('alone').hidden"), "the words for one server")
    assert "--cluster-store" in texts(browser, "#alone")[0]
    assert server.stop() == 0, server.log_text()
