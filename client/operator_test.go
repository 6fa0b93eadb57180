package client_test

import (
	"testing"

	"github.com/kvoracle/kvoracle/client/clienttest"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

func invalidate(t *testing.T, o *clienttest.Oracle, worker string) {
	t.Helper()
	_, err := kvoraclev1.NewFleetServiceClient(o.Conn()).InvalidateWorker(t.Context(), &kvoraclev1.InvalidateWorkerRequest{WorkerId: worker})
	if err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, o *clienttest.Oracle, worker string) {
	t.Helper()
	_, err := kvoraclev1.NewFleetServiceClient(o.Conn()).RemoveWorker(t.Context(), &kvoraclev1.RemoveWorkerRequest{WorkerId: worker})
	if err != nil {
		t.Fatal(err)
	}
}
