"""Names of the ways in which a server puts pushes into its table, see `dist_classicrl.tables.merging`."""

ALL = ("affine", "order_free", "staleness_weighted", "reject_stale")

BY_STALENESS = ("staleness_weighted", "reject_stale")
"""Those for which it matters how old the base of a push is, so that several cannot come as one."""
