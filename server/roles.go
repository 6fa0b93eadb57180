package server

import (
	"github.com/kvoracle/kvoracle/internal/access"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// rule is what a call wants.
type rule struct {
	roles    access.Role // one of these; Nobody: no identity at all
	isStream bool        // it may last
	// isIdle says that its first message may come whenever it likes.
	isIdle bool
	// isAudited says that each call is written down.
	isAudited bool
}

// anyRole is any of them.
const anyRole = access.Gateway | access.Worker | access.Operator | access.Monitor

// rolesOf is the one table of who may call what, by full method name. A method that is not in it is an operator's: so a
// new one is closed until somebody has thought about it, and a test asks for its row.
func rolesOf() map[string]access.Role {
	const gateways, readers = access.Gateway | access.Operator, access.Gateway | access.Operator | access.Monitor
	return map[string]access.Role{
		"/envoy.service.ext_proc.v3.ExternalProcessor/Process":          access.Gateway,
		"/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs": access.Gateway,
		// With explain, also an operator: see mayExplain.
		kvoraclev1.RouteService_Route_FullMethodName:          gateways,
		kvoraclev1.RouteService_RouteStream_FullMethodName:    gateways,
		kvoraclev1.RouteService_ReportProgress_FullMethodName: access.Gateway,
		kvoraclev1.RouteService_RecordProgress_FullMethodName: access.Gateway,
		// For its own workers: see mayReport.
		kvoraclev1.RouteService_ReportBlocks_FullMethodName: access.Worker,
		kvoraclev1.RouteService_ReportLoad_FullMethodName:   access.Worker,

		kvoraclev1.FleetService_GetWorker_FullMethodName:        readers,
		kvoraclev1.FleetService_ListWorkers_FullMethodName:      readers,
		kvoraclev1.FleetService_WatchWorkers_FullMethodName:     readers,
		kvoraclev1.FleetService_RegisterWorker_FullMethodName:   access.Operator,
		kvoraclev1.FleetService_UpdateWorker_FullMethodName:     access.Operator,
		kvoraclev1.FleetService_DrainWorker_FullMethodName:      access.Operator,
		kvoraclev1.FleetService_RemoveWorker_FullMethodName:     access.Operator,
		kvoraclev1.FleetService_InvalidateWorker_FullMethodName: access.Operator,
		kvoraclev1.FleetService_ExplainDecision_FullMethodName:  access.Operator,
		kvoraclev1.FleetService_VerifyWorker_FullMethodName:     access.Operator,
		kvoraclev1.FleetService_RecordRequests_FullMethodName:   access.Operator,

		// Probes have no credentials.
		"/grpc.health.v1.Health/Check": access.Nobody,
		"/grpc.health.v1.Health/List":  access.Nobody,
		"/grpc.health.v1.Health/Watch": access.Nobody,

		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      anyRole,
		"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": anyRole,
	}
}

// rulesOf is the rule of every method that gRPC serves.
func rulesOf(served func(yield func(method string, isStream bool) bool)) map[string]rule {
	table := rolesOf()
	rules := make(map[string]rule)
	for method, isStream := range served {
		roles, ok := table[method]
		if !ok {
			roles = access.Operator
		}
		rules[method] = rule{
			roles: roles, isStream: isStream,
			isIdle:    method == kvoraclev1.RouteService_RouteStream_FullMethodName,
			isAudited: roles == access.Operator,
		}
	}
	return rules
}
