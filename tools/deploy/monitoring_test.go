package deploy

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// TestRules: Prometheus takes the alert rules, templates and all.
func TestRules(t *testing.T) {
	groups, errs := rulefmt.ParseFile(filepath.Join(top, "deploy", "monitoring", "alerts.yaml"), false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if groups == nil || len(groups.Groups) == 0 || len(groups.Groups[0].Rules) < 10 {
		t.Fatalf("rules are %+v", groups)
	}
}

// TestDashboard: each expression of the dashboard is one for Prometheus, once Grafana has put in its variables.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(top, "deploy", "monitoring", "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	p := parser.NewParser(parser.Options{})
	variables := strings.NewReplacer("$__rate_interval", "5m", "$__interval", "1m", "$__range", "1h")
	seen := 0
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			seen++
			if _, err := p.ParseExpr(variables.Replace(target.Expr)); err != nil {
				t.Errorf("%s: %v in %s", panel.Title, err, target.Expr)
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d expressions were found", seen)
	}
}
