//! kiln.
