"""Leases in etcd."""

from qimd.adapters.etcd.lease import EtcdLease, open_etcd

__all__ = ["EtcdLease", "open_etcd"]
