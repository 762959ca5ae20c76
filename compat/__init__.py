"""The compatibility suite of the contract: fixtures, a lock of the schema, and a runner for any
implementation. docs/contract.md says how to use it in another project's CI.
"""
