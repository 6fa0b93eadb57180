package kvevents

// Signs of who published a batch.
type Signs uint16

const (
	signVLLM     Signs = 1 << iota // a form that only vLLM has
	signSGLang                     // a form that only SGLang has
	signPool                       // Mooncake's keys
	signNamed                      // a map that says of an adapter that there is none: vLLM, TensorRT-LLM
	signUnnamed                    // a map that does not: SGLang
	signNegative                   // a negative hash in a form of an age in which vLLM has none
	signCleared                    // it begins with a clear, as an array
)

// sign notes what an event shows of its publisher.
func (p *partly) sign(b *Batch) {
	isFirst := len(b.Events) == 0
	switch {
	case p.IsPool:
		b.Signs |= signPool
	case p.Kind == Cleared && isFirst && !p.isMap:
		b.Signs |= signCleared
	case p.Kind == Stored && p.isMap && p.seen&(1<<fieldSalt) != 0:
		b.Signs |= signSGLang
	case p.Kind == Stored && p.isMap && len(p.LoRAName) > 0: // SGLang names one, too, since 0.5.23
	case p.Kind == Stored && p.isMap && p.seen&(1<<fieldLoRAName) != 0:
		b.Signs |= signNamed
	case p.Kind == Stored && p.isMap:
		b.Signs |= signUnnamed
	case p.Kind == Stored && p.fields >= 8 && len(p.Salt) == 0:
		b.Signs |= signVLLM
	}
	if p.Group >= 0 || len(p.Extras) > 0 || p.GroupKind != GroupUnsaid {
		b.Signs |= signVLLM
	}
}

// Detector concludes who publishes a stream. The zero value is ready; not for concurrent use.
type Detector struct {
	engine Engine
	began  bool
}

// Engine is the conclusion so far.
func (d *Detector) Engine() Engine { return d.engine }

// Observe takes in the next batch and its sequence, and returns the conclusion so far. Once there is one, it stays.
// Streams of vLLM before 0.10 and of SGLang's first age that begin in the middle look alike: EngineUnknown.
func (d *Detector) Observe(sequence uint64, b *Batch) Engine {
	isFirst := !d.began
	d.began = true
	if d.engine != EngineUnknown {
		return d.engine
	}
	const clockSequence = 1e18 // no count; TensorRT-LLM's streams begin with the time in nanoseconds
	has := func(s Signs) bool { return b.Signs&s != 0 }
	switch {
	case has(signPool):
		d.engine = EngineMooncake
	case sequence >= clockSequence:
		d.engine = EngineTRTLLM
	case has(signSGLang):
		d.engine = EngineSGLang
	case has(signVLLM):
		d.engine = EngineVLLM
	case has(signNamed) && has(signNegative):
		d.engine = EngineTRTLLM
	case has(signNamed):
		d.engine = EngineVLLM
	case has(signUnnamed), has(signNegative):
		d.engine = EngineSGLang
	case has(signCleared) && isFirst && sequence == 0:
		d.engine = EngineSGLang
	}
	return d.engine
}
