// Package script runs transcripts against a live oracle: a text in which each command is followed by what the oracle
// answered. A transcript is a test (the answers are compared), a bug report, and a way to try the protocol by hand.
//
//	# Engine restarts in place; the blocks of its former life are gone.
//	RB w1 e1 s1 +[A AB ABC]
//	----
//	ack s1 fresh held=3 stored=3
//
//	RB w1 e2 s1 +[X]
//	----
//	ack s1 fresh held=1 stored=1
//
//	ov ABC
//	----
//	w1=0
//
// A comment "# config max_blocks=3" says that the answers are those of a server which was started with --max-blocks=3.
//
// A letter stands for four tokens, ^ for one; a string of them is a prompt, and "+2" behind it adds two more tokens. As a
// block's name, AB is the block with content B whose parent is A. Workers have a block size of 4 tokens and serve model "m"
// unless a worker line says otherwise.
//
// Commands (options are key=value, in any order, behind the fixed part):
//
//	worker W [model= block= dp= addr= roles=prefill,decode max= repeats=counted scheme= label.K=V]
//	    says how W introduces itself from now on; sends nothing. An empty value leaves the field out (block=0)
//	    hashes=numbers|bytes: W names its blocks by engine hashes, made of its seed=, lora=, salt= and the block's name;
//	    groups=NUMBER:KIND:BLOCKSIZE,...: its attention groups (full, window, state, other); window=: hash_window
//	    roots=N,N: parents that stand for a prompt's start
//	RB W[/rank] eN sN OPS... [lora=name[@rev] salt= tier= group= next= img=]
//	    one batch (or snapshot) of incarnation N with sequence N. The stream is opened with hello when the incarnation is
//	    new (next= is the hello's next_sequence, by default the batch's). OPS:
//	      +[A AB]   stores, one operation a block, by tokens      +{ABC}     one operation, a chain from the start
//	      +{A>BC}   one operation, a chain that follows block A   +(A 2)     A with 2 tokens missing (a partial block)
//	      +id[P:X]  a store by ids: block named X under P         -[A AB]    one removal of these blocks
//	      +p[N>A]   one operation, a store of A under the parent with number N
//	      ?[A AB]   one operation, a store of these engine hashes without content
//	      +h[N>M=A] a store of A that is engine hash M under engine hash N; without "N>" at the start, without "=A" untold
//	      -h[N M]   one removal of these engine hashes
//	      ?op ?parent ?content   an operation, or a store, without the part named
//	      clear     everything                                    snap[A AB] a snapshot at this sequence
//	      begin, part[A AB], end     the same in pieces, one a line; part and end want no sequence
//	      lost+[A] lost-[A]          what the reporter believes to have said, lost before it was sent
//	      digest    a digest of what the stream's own batches should have left in the device tier
//	      digest!   the same with a wrong sum
//	cut W[/rank]             closes the stream
//	RL W[/rank] [run= wait= tokens= used= total= at=]     one load sample
//	RT PROMPT [xN] [free] [OPTIONS]    routes (N times); free finishes each at once
//	ov PROMPT [guesses] [OPTIONS]      a dry run: leading blocks held, by worker; with guesses, also "+" those expected
//	    beyond them because prompts were routed there
//	    OPTIONS: model= lora= salt= img= as=NAME session= deny=W,W allow=W,W phase= scheme= hashes=BLOCKSIZE label.K=V id=
//	    prefer.K=V priority= tenant= wait=SECONDS (for a place) else=N (shows so many runners-up and what is known of them)
//	    img=FIRST+COUNT:NAME,... are images under COUNT tokens of the prompt from FIRST on; in an RB line, of the prompts whose
//	    blocks it names
//	sent NAME W[/rank] | first NAME | gen NAME n | free NAME [cached=] | cancel NAME | fail NAME    a routed request goes on;
//	    with gw=G it is said on the progress stream of gateway G
//	gateway G eN             opens that stream, of incarnation N of the gateway; cut G closes it
//	wait SECONDS             lets time pass, up to an hour; against a live server it takes that long
//	register W               adds a worker that does not report by itself
//	drain W | undrain W | remove W | invalidate W | list
//	load W[/rank] [prefill]  requests in flight, own bookings among them, whether prefill is pending, and how that is known
package script
