"""HTML pages of bundles, for tests of their content and of their look in a browser."""

from typing import Final

from kvc.schema.container import BundleFile
from kvc.tools.page.content import PageContent, describe_page
from kvc.tools.reports.bundle import describe_file

HOSTILE: Final = (
    "</script><script>document.title='taken'</script><!--content--><!--script-->"
)


def content_of(path) -> PageContent:
    with BundleFile.open(path) as file:
        return describe_page(describe_file(file, (), by_method=True), file.program)
