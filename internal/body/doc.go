// Package body reads request bodies into memory, to be inspected and then sent any number of times.
//
// Each body is bounded in size and in the time that a client may be silent, and all bodies together
// by a Budget in bytes. Memory follows the bytes that have arrived and is pooled. The package
// imports no other package of this module.
package body
