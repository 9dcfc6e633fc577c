// Package body reads request bodies into memory, to be inspected and then sent any number of times.
//
// Each body is bounded in size and in the client's idle time, and all bodies together by a Budget
// in bytes. Memory grows with the bytes received and is pooled. The package imports no other
// package of this module.
package body
