"""Leases in etcd."""

from qimd.adapters.etcd.lease import EtcdLease, claim_key, open_etcd

__all__ = ["EtcdLease", "claim_key", "open_etcd"]
