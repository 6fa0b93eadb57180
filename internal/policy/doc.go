// Package policy chooses. It is a pure function of what it is given: facts about one request, facts about each target
// that may take it, and (through CostModel) what work costs there. No clock, no lock, no state; what varies between two
// equal questions, a seed or a turn, is handed in. Equal input gives equal output on every replica.
//
// The unit of cost is the second. The default, LeastTime, adds up what a request would wait for, and what it would take
// from the others; the other policies are for comparison.
//
// Invariants, for every policy and any numbers in the input:
//   - len(d.Scores) == len(d.Order) == len(cands); d.Order is a permutation of the candidates; d.Best == d.Order[0];
//   - every float in d.Scores is finite and at least 0: impossible inputs (negative, NaN, infinite, a capacity of
//     zero) are read as the nearest possible one, and no term exceeds MaxTerm;
//   - 1 <= Uncached <= PromptTokens for a prompt that is not empty: engines always compute the last token;
//   - LeastTime: Cost == Terms.Sum(), TTFT <= Cost + Terms.Copy.
//
// Ranking of the policies that compare costs: let c be the least cost. Candidates whose cost is within TieBand of c are
// tied and ordered by the tie rules; all others follow by cost, then target id. Ties are therefore a group and not a
// relation between neighbours, which would not be transitive.
//
// Tie rules, first difference decides: deeper match, more of the preferred labels, same session, fewest in flight, least
// recently chosen, lowest target id. Where nobody holds anything and the request wishes for nobody, load spreads; where
// someone does, it stays.
//
// Cost: O(n log n) for n candidates, no allocation once the Decision has capacity. A Policy may be used by any number
// of goroutines at once; a Decision by one at a time.
package policy
