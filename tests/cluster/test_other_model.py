"""Another embedding model for a collection of a cluster: the steps of docs/cluster.md, unchanged."""

import argparse
import re
import shlex

import pytest
import requests
from deployment import Cluster
from embedding import serve_patches
from processes import NodePlan, wait_until

# Modules of tests/clients, which `processes` makes importable.
from millpond import REPOSITORY
from test_image_features import FeatureClient
from test_images import picture

PLANS = [NodePlan("a", "root,search,ingest,extract"), NodePlan("b", "root,search,ingest,extract")]
PHOTOS = 12
DOCUMENTED = "http://127.0.0.1:8501"
COMMAND_TIMEOUT_S = 120


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("other-model")
    cluster = Cluster(PLANS, scratch, scratch / "logs", s3=False)
    serve_patches(cluster.nodes.values(), ("patches", "better"))
    cluster.start()
    yield cluster
    cluster.close()


def documented_steps() -> tuple[str, list[str]]:
    """Returns the program and the commands of the section."""
    page = (REPOSITORY / "docs/cluster.md").read_text()
    section = page.split("### Another embedding model\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    [program] = [text for language, text in blocks if language == "python"]
    return program, [text for language, text in blocks if not language]


def run(command: str, client: FeatureClient) -> None:
    """Sends the request of a call of curl, which a machine may lack."""
    program, *arguments = shlex.split(command.replace("\\\n", " "))
    assert program == "curl"
    parser = argparse.ArgumentParser()
    parser.add_argument("-X", dest="method")
    parser.add_argument("-d", dest="body")
    parser.add_argument("url")
    call = parser.parse_args(arguments)
    url = call.url.replace(DOCUMENTED, client.server.url)
    # The content type that curl sends with -d.
    headers = {"content-type": "application/x-www-form-urlencoded"} if call.body else {}
    answer = requests.request(call.method, url, data=call.body, headers=headers, timeout=COMMAND_TIMEOUT_S)
    assert answer.ok, answer.text


def copy(program: str, client: FeatureClient) -> list[str]:
    """Runs the program. Returns the ids of the images that have no original."""
    names = {}
    exec(compile(program.replace(DOCUMENTED, client.server.url), "docs/cluster.md", "exec"), names)  # noqa: S102
    return names["left_out"]


def test_the_documented_steps_change_the_model(cluster):
    client, other = (FeatureClient(node) for node in cluster.nodes.values())
    program, [move, delete] = documented_steps()
    images = {number: picture(number) for number in range(PHOTOS)}
    ids = {}
    for number, image in images.items():
        query = {"model": "patches", "name": f"{number}.png", "payload": f'{{"n": {number}}}'}
        ids[number] = [client, other][number % 2].good("PUT", "photos-1", image, **query)["id"]
    point = client.extract("photos-1", picture(PHOTOS), name="features.png")
    alone = client.put("photos-1", [{**point, "id": 7}])
    assert alone["added"] == 1, alone
    run(move.replace("photos-2", "photos-1"), client)

    # The second run continues where the first one ended.
    for _ in range(2):
        assert copy(program, client) == [7]
    run(move, client)
    run(delete, client)

    def moved() -> bool:
        answer = other.send("GET", "photos", min_coverage=1)
        return answer.status_code == 200 and answer.json()["count"] == PHOTOS

    # The old collection has one image more.
    wait_until("the other root has the alias", moved)
    for one in (client, other):
        page = one.good("GET", "photos", consistency="strong", min_coverage=1, limit=PHOTOS)
        found = {image["id"]: (image["name"], image["payload"]) for image in page["images"]}
        assert found == {ids[number]: (f"{number}.png", {"n": number}) for number in images}
        assert one.send("GET", f"photos/{ids[3]}").content == images[3]
    # The new collection has the new model.
    client.refused(409, "better", "PUT", "photos", picture(100), model="patches")
