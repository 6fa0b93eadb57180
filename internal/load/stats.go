package load

// Counters only grow. Each counts what its name says since New.
type Counters struct {
	// Booked counts bookings made; Repeated and Full those refused with ErrRepeated and ErrFull.
	Booked, Repeated, Full uint64
	// Finished, Cancelled, Failed, Expired, GatewayGone and Dropped count bookings released, by cause. Together they
	// are Booked less the living ones.
	Finished, Cancelled, Failed, Expired, GatewayGone, Dropped uint64
	// Presumed counts prefills that were taken to be over because their time was, no first token having been told.
	Presumed uint64
	// Outlived counts bookings that were taken to be over because their time was, no end having been told.
	Outlived uint64
	// Late and Unknown count progress events that changed nothing.
	Late, Unknown uint64
	// Samples counts load samples accepted, SamplesIgnored those that came after a newer one.
	Samples, SamplesIgnored uint64
}

// Stats is the tracker at one moment.
type Stats struct {
	Counters
	// Targets, Bookings and Gateways are the numbers known now; a gateway is known while it has a booking.
	Targets, Bookings, Gateways int
}

// Stats reads the counters and gauges.
func (t *Tracker) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Stats{
		Counters: t.count,
		Targets:  t.known,
		Bookings: t.bookings.Len(),
		Gateways: len(t.gateways),
	}
}
