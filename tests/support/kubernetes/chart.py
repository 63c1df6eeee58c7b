"""The Helm chart, values that it takes, and values that it refuses."""

from typing import Any

from support.repository import ROOT

CHART = ROOT / "deploy" / "helm" / "distop"
LEAST = {"etcd": {"endpoints": ["etcd-0:2379"]}, "coordinator": {"insecure": True}}
VALUES: dict[str, dict[str, Any]] = {
    "least": LEAST,
    "one of each": {
        **LEAST,
        "coordinator": {"insecure": True, "replicas": 1},
        "executor": {"replicas": 1, "workers": {"instances": 1, "cores": 1, "memory": "512m"}},
        "networkPolicy": {"enabled": False},
    },
    "all there is": {
        "image": {
            "service": "images.example/distop:1-service",
            "spark": "images.example/distop@sha256:0123456789abcdef",
            "pullPolicy": "Always",
            "pullSecrets": ["pull", "pull-2"],
        },
        "etcd": {
            "endpoints": ["etcd-0.etcd:2379", "https://etcd-1.etcd:2379", "[fd00::1]:2379"],
            "prefix": "other",
            "user": "distop",
            "passwordSecret": "etcd-user",
            "tlsSecret": "etcd-tls",
        },
        "allow": {
            "sources": ["s3://in/", "*"],
            "locations": ["s3://tables/"],
            "endpoints": ["https://s3.example"],
        },
        "credentialsSecret": "aws",
        "coordinator": {
            "replicas": 3,
            "tlsSecret": "page-tls",
            "tokensSecret": "tokens",
            "admins": ["root", "k8s:system:serviceaccount:data:root"],
            "issuers": ["https://login.example"],
            "serviceAccounts": "https://kubernetes.default.svc.cluster.local",
            "audience": "distop",
            "catalog": {"enabled": True, "warehouse": "s3://tables/"},
            "args": ["--remember-runs=3d"],
            "resources": {"requests": {"cpu": 2, "memory": "1048576Ki"}, "limits": {"cpu": "2.5"}},
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "only", "operator": "Equal", "value": "distop", "effect": "NoSchedule"}],
        },
        "executor": {
            "types": ["ingest", "compact"],
            "conf": {
                "spark.executor.memory": "4g",
                "spark.speculation": True,
                "spark.blockManager.port": 0,
                "spark.sql.files.maxPartitionBytes": 128 << 20,
            },
            "args": ["--log-level=debug"],
            "tolerations": [{"operator": "Exists"}],
            "workers": {"nodeSelector": {"disk": "fast"}, "tolerations": [{"operator": "Exists"}]},
        },
        "networkPolicy": {"clients": [{"namespaceSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8"}}]},
        "monitoring": {
            "serviceMonitor": True,
            "podMonitor": True,
            "prometheusRule": True,
            "tokenSecret": "prometheus-token",
            "labels": {"release": "prometheus"},
        },
    },
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no etcd": ({"coordinator": {"insecure": True}}, "'/etcd/endpoints': minItems: got 0, want 1"),
    "an etcd without a port": (
        {"etcd": {"endpoints": ["etcd"]}},
        "'/etcd/endpoints/0': 'etcd' does not match",
    ),
    "a secret instead of its name": (
        {**LEAST, "etcd": {"endpoints": ["e:2379"], "password": "secret"}},
        "'/etcd': additional properties 'password' not allowed",
    ),
    "a name that no secret has": (
        {**LEAST, "credentialsSecret": "a b"},
        "'/credentialsSecret': 'a b' does not",
    ),
    "a value with a slip": ({**LEAST, "executer": {}}, "additional properties 'executer' not allowed"),
    "no coordinator": ({**LEAST, "coordinator": {"replicas": 0}}, "minimum: got 0, want 1"),
    "an image that moves": ({**LEAST, "image": {"service": "distop:latest"}}, "'/image/service'"),
    "a setting that is not Spark's": (
        {**LEAST, "executor": {"conf": {"a": "b"}}},
        "invalid propertyName 'a'",
    ),
    "neither TLS nor the word that it is left out": (
        {"etcd": {"endpoints": ["e:2379"]}},
        "coordinator.tlsSecret must name a secret with tls.crt and tls.key; or allow plain text",
    ),
    "both": (
        {**LEAST, "coordinator": {"insecure": True, "tlsSecret": "tls"}},
        "coordinator.tlsSecret and coordinator.insecure contradict each other",
    ),
    "a user without a password": (
        {**LEAST, "etcd": {"endpoints": ["e:2379"], "user": "distop"}},
        "etcd.user and etcd.passwordSecret go together",
    ),
    "an issuer for everybody": (
        {**LEAST, "coordinator": {"insecure": True, "issuers": ["https://login.example"]}},
        "coordinator.audience must say which",
    ),
    "service accounts for everybody": (
        {**LEAST, "coordinator": {"insecure": True, "serviceAccounts": "https://kubernetes.default.svc"}},
        "coordinator.audience must say which",
    ),
    "keys over plain text": (
        {**LEAST, "coordinator": {"insecure": True, "serviceAccounts": "http://k", "audience": "a"}},
        "'/coordinator/serviceAccounts'",
    ),
    "half a byte": (
        {**LEAST, "sidecar": {"resources": {"limits": {"memory": "500m"}}}},
        "'/sidecar/resources/limits/memory'",
    ),
    "a unit that is none": (
        {**LEAST, "sidecar": {"resources": {"limits": {"memory": "512ki"}}}},
        "'/sidecar/resources/limits/memory'",
    ),
    "a label that no node has": (
        {**LEAST, "executor": {"nodeSelector": {"disk": "very fast"}}},
        "'/executor/nodeSelector/disk': 'very fast' does not match",
    ),
    "a toleration of any value, and of this one": (
        {**LEAST, "executor": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}},
        "'/executor/tolerations/0/value': maxLength: got 1, want 0",
    ),
    "a toleration of nothing": (
        {**LEAST, "executor": {"tolerations": [{"value": "b"}]}},
        "'/executor/tolerations/0': missing property 'key'",
    ),
    "clients from nowhere": (
        {**LEAST, "networkPolicy": {"clients": [{"ipBlock": {}}]}},
        "'/networkPolicy/clients/0/ipBlock': missing property 'cidr'",
    ),
    "clients by address and by label": (
        {**LEAST, "networkPolicy": {"clients": [{"ipBlock": {"cidr": "::/0"}, "podSelector": {}}]}},
        "'/networkPolicy/clients/0': maxProperties: got 2, want 1",
    ),
    "another name for what the chart names": (
        {**LEAST, "monitoring": {"labels": {"app.kubernetes.io/name": "other"}}},
        "invalid propertyName 'app.kubernetes.io/name'",
    ),
    "a secret without a name to pull with": (
        {**LEAST, "image": {"pullSecrets": [""]}},
        "'/image/pullSecrets/0': minLength: got 0, want 1",
    ),
    "a warehouse without a catalog": (
        {**LEAST, "coordinator": {"insecure": True, "catalog": {"warehouse": "s3://b/"}}},
        "coordinator.catalog.enabled=true",
    ),
}
