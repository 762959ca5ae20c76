"""qim: multi-tenant group-messaging delivery. ARCHITECTURE.md is the map of this package."""
