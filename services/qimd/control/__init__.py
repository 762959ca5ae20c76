"""The room of the operator: tenants, trace, audit."""
