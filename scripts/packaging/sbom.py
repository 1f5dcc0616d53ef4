"""Writes a CycloneDX list of the packages that the program depends on, from `cargo metadata` on stdin: sbom.py TO

Dependencies for builds and tests are left out. Checksums are Cargo.lock's, of the packages as crates.io has them.
"""
import datetime, json, os, pathlib, sys, tomllib, uuid
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

metadata, version = json.load(sys.stdin), os.environ["VERSION"]
packages = {package["id"]: package for package in metadata["packages"]}
nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
lock = tomllib.loads(pathlib.Path("Cargo.lock").read_text())["package"]
checksums = {(one["name"], one["version"]): one["checksum"] for one in lock if "checksum" in one}
licences = LicenseFactory()


def linked(id):
    """The ids of its dependencies that are linked; procedural macros run at compile time alone."""
    is_macro = lambda id: any("proc-macro" in target["kind"] for target in packages[id]["targets"])
    return [one["pkg"] for one in nodes[id]["deps"] if any(kind["kind"] is None for kind in one["dep_kinds"]) and not is_macro(one["pkg"])]


(root,) = (id for id, package in packages.items() if package["name"] == "pascaline-cli")
found, waiting = {}, [root]
while waiting:
    id = waiting.pop()
    if id in found:
        continue
    package = packages[id]
    name, number = package["name"], package["version"]
    sums = [HashType(alg=HashAlgorithm.SHA_256, content=checksums[name, number])] if (name, number) in checksums else []
    found[id] = Component(
        name="pascaline" if id == root else name, version=number, bom_ref=f"{name}@{number}", hashes=sums,
        type=ComponentType.APPLICATION if id == root else ComponentType.LIBRARY,
        purl=PackageURL("cargo", None, name, number) if package["source"] else None,
        licenses=[licences.make_from_string(package["license"].replace("/", " OR "))] if package["license"] else [])
    waiting += linked(id)
# the same commit gives the same bytes: number and time are the commit's
bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"pascaline-{version}-{os.environ['PASCALINE_COMMIT']}"))
bom.metadata.timestamp = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
bom.metadata.component = found[root]
bom.components.update(component for id, component in found.items() if id != root)
for id, component in found.items():
    bom.register_dependency(component, [found[one] for one in linked(id)])
text = JsonV1Dot6(bom).output_as_string(indent=1)
if wrong := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
    sys.exit(f"FAILED: not as CycloneDX's schema says: {wrong}")
to = pathlib.Path(sys.argv[1]) / f"pascaline-{version}-sbom.cdx.json"
to.write_text(text + "\n")
print(f"{to}: {len(found) - 1} packages")
