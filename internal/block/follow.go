package block

// Follow is how many leading ids are those of blocks with these local hashes, of which the first follows parent. Unlike
// AppendChainAfter, it does not wait for one id to make the next: each is checked against the one that stands before it,
// which was checked too. So it takes a quarter of the time, and proves as much.
func Follow[I ~uint64](parent ID, locals []Local, ids []I) int {
	n := min(len(locals), len(ids))
	locals, ids = locals[:n], ids[:n]
	i, p := 0, uint64(parent)
	for ; i+4 <= n; i += 4 {
		l, w := locals[i:i+4:i+4], ids[i:i+4:i+4]
		a, b, c, d := uint64(w[0]), uint64(w[1]), uint64(w[2]), uint64(w[3])
		if (pair(p, uint64(l[0]))^a)|(pair(a, uint64(l[1]))^b)|(pair(b, uint64(l[2]))^c)|(pair(c, uint64(l[3]))^d) != 0 {
			break
		}
		p = d
	}
	for ; i < n && pair(p, uint64(locals[i])) == uint64(ids[i]); i++ {
		p = uint64(ids[i])
	}
	return i
}
