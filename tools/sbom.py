"""Write what a lock file pins as a bill of materials in CycloneDX's JSON.

``sbom.py LOCK OUTPUT``. It needs the packages of requirements-audit.lock. The same lock gives the
same bytes: there is no time in it, no machine and no package index.
"""

import json
import re
import sys
from pathlib import Path
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

ROOT: Final = Path(__file__).parent.parent
_PACKAGE: Final = re.compile(
    r"^(?P<name>[a-z0-9.-]+)==(?P<version>\S+) \\\n(?P<rest>(?:^ {4}.*\n)+)", re.MULTILINE
)
_VERSION: Final = re.compile(r'^VERSION: Final = "(.+)"$', re.MULTILINE)
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
# Who asks for it: behind "via" on the same line, or on lines of their own.
_VIA: Final = re.compile(r"^ {4}#(?: via|  ) +([^\s#]+)", re.MULTILINE)


def bill_of(lock: str, root: Component) -> Bom:
    """Return the bill of what *root* needs by the text of a lock file."""
    bom = Bom()
    bom.serial_number = uuid5(NAMESPACE_URL, lock)
    bom.metadata.component = root
    components = {root.name: root}
    needed_by: dict[str, list[str]] = {}
    for found in _PACKAGE.finditer(lock):
        name, version, rest = found["name"], found["version"], found["rest"]
        components[name] = component(name, version, _HASH.findall(rest))
        needed_by[name] = _VIA.findall(rest)
        bom.components.add(components[name])
    for name, dependents in needed_by.items():
        for dependent in dependents:
            bom.register_dependency(components[dependent], [components[name]])
    return bom


def component(name: str, version: str, hashes: list[str]) -> Component:
    """Return one package; *hashes* are those of its files that may be installed."""
    purl = PackageURL("pypi", None, name, version)
    files = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(str(purl)),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in hashes],
    )
    return Component(
        name=name, version=version, purl=purl, bom_ref=str(purl), external_references=[files]
    )


def main() -> None:
    """Write the file."""
    lock, output = Path(sys.argv[1]), Path(sys.argv[2])
    version = _VERSION.search((ROOT / "protocol/version.py").read_text())
    assert version is not None
    root = Component(
        name="group-coordinator", version=version[1], type=ComponentType.APPLICATION, bom_ref="root"
    )
    document = json.loads(JsonV1Dot6(bill_of(lock.read_text(), root)).output_as_string())
    del document["metadata"]["timestamp"]
    output.parent.mkdir(exist_ok=True)
    output.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
