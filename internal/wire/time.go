package wire

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// Timestamp writes a moment on the oracle's clock.
func Timestamp(t time.Time) *timestamppb.Timestamp { return timestamppb.New(t) }

func timestamp(unixNanos int64) *timestamppb.Timestamp { return Timestamp(time.Unix(0, unixNanos)) }
