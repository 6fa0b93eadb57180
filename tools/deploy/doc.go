// Package deploy checks what the repository gives to Kubernetes and Prometheus with their own code: charts are rendered
// by Helm, kustomizations built by Kustomize, objects read strictly into Kubernetes's types, rules and the expressions of
// dashboards parsed by Prometheus. Its dependencies are far larger than the product's, hence the module of its own.
package deploy
