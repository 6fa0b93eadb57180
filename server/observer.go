package server

import (
	"context"
	"log/slog"

	"github.com/kvoracle/kvoracle/internal/fleet"
	"github.com/kvoracle/kvoracle/internal/oracle"
)

// observer counts what happens in the oracle, and writes down what an operator has to look into.
type observer struct {
	oracle.Observer

	log *slog.Logger
}

// Unmatched implements oracle.Observer.
func (o observer) Unmatched(w *fleet.Worker, rank, blocks int) {
	o.Observer.Unmatched(w, rank, blocks)
	o.log.LogAttrs(context.Background(), slog.LevelWarn, "blocks that no question begins with",
		slog.String("worker", w.Worker), slog.Int("dp_rank", rank), slog.String("model", w.Model), slog.Int("blocks", blocks),
		slog.String("hint", "callers may send other tokens than the engine caches (chat template, start token), or another adapter or salt"))
}
