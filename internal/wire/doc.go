// Package wire translates between the proto messages and the oracle's own values, in both directions, and is the door
// where input is checked. It keeps no state between messages.
//
// Rules of the door:
//   - every check happens before anything is stored, in one grammar: "field: got X, want Y";
//   - a field this server does not serve yet is refused by name (UNIMPLEMENTED), never ignored;
//   - a message that cannot be understood as a whole is an error; inside a batch, a single bad operation becomes an
//     OpRefused that the oracle counts and names in the ack, and the rest goes on;
//   - errors carry lengths and ids, never token ids or text.
//
// Decoded values share the memory of the message (token and hash slices), so a message must not be changed while the
// oracle works on it.
package wire
