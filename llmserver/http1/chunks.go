package http1

import (
	"bytes"
	"errors"
	"io"
	"math"
)

const (
	// maxOverhead bounds the framing that comes in excess of 16 bytes a chunk
	// and two for each byte of data: only chunk extensions that serve nobody are that long.
	maxOverhead = 4 << 10
	maxTrailer  = 4 << 10
)

var (
	errChunk    = errors.New("the chunked coding is malformed")
	errOverhead = errors.New("the chunked coding is mostly framing")
	errTrailer  = errors.New("the trailer is too long")
)

// chunks takes chunked coding apart, wherever reads cut it. The states follow the grammar of RFC 9112, section 7.1:
//
//	sizeStart → size → (pad | extension) → sizeLF → data → dataCR → dataLF → sizeStart
//	                                              ↘ lastCR → lastLF → over
//	                                                  ↘ trailer → over
type chunks struct {
	state    chunkState
	digits   int8
	size     uint64 // of the chunk; in data, what is left of it
	overhead int
	trailer  []byte // the fields behind the last chunk, with the empty line that ends them
}

type chunkState uint8

const (
	sizeStart chunkState = iota
	size
	pad
	extension
	sizeLF
	data
	dataCR
	dataLF
	lastCR
	lastLF
	trailer
	over
)

// decode moves the data in p to its front and returns how much it is. used is
// how much of p belongs to the body: all of it, until the error is io.EOF.
func (d *chunks) decode(p []byte) (n, used int, err error) {
	for used < len(p) {
		if d.state == data {
			k := int(min(d.size, uint64(len(p)-used)))
			n += copy(p[n:], p[used:used+k])
			used += k
			if d.size -= uint64(k); d.size == 0 {
				d.state = dataCR
			}
			continue
		}
		if err := d.step(p[used]); err != nil {
			return n, used, err
		}
		used++
		if d.state == over {
			return n, used, io.EOF
		}
	}
	return n, used, nil
}

// step takes one byte of framing.
func (d *chunks) step(b byte) error {
	switch d.state {
	case sizeStart, size, pad, extension:
		return d.stepSize(b)
	case sizeLF:
		return d.stepSizeLF(b)
	case dataCR:
		return d.expect(b, '\r', dataLF)
	case dataLF:
		return d.expect(b, '\n', sizeStart)
	case lastCR:
		if b == '\r' {
			d.state = lastLF
			return nil
		}
		d.state = trailer
		return d.stepTrailer(b)
	case lastLF:
		return d.expect(b, '\n', over)
	case trailer:
		return d.stepTrailer(b)
	default:
		panic("BUG: no framing is due")
	}
}

func (d *chunks) expect(b, want byte, next chunkState) error {
	if b != want {
		return errChunk
	}
	d.state = next
	return nil
}

// stepSize takes a byte of the line that tells a chunk's size.
func (d *chunks) stepSize(b byte) error {
	if d.overhead++; d.overhead > maxOverhead {
		return errOverhead
	}
	digit, hex := unhex(b)
	switch {
	case d.state == sizeStart && !hex:
		return errChunk
	case d.state <= size && hex:
		d.state = size
		if d.digits++; d.digits > 16 || d.size > math.MaxInt64>>4 {
			return errChunk
		}
		d.size = d.size<<4 | uint64(digit)
	case b == '\r':
		d.state = sizeLF
	case d.state == extension && b != '\n', d.state == size && b == ';':
		d.state = extension
	case d.state <= pad && (b == ' ' || b == '\t'):
		d.state = pad
	default:
		return errChunk
	}
	return nil
}

func (d *chunks) stepSizeLF(b byte) error {
	if b != '\n' {
		return errChunk
	}
	d.overhead = max(0, d.overhead+1-16-2*int(min(d.size, maxOverhead)))
	d.digits = 0
	d.state = data
	if d.size == 0 {
		d.state = lastCR
	}
	return nil
}

func (d *chunks) stepTrailer(b byte) error {
	if d.trailer = append(d.trailer, b); len(d.trailer) > maxTrailer {
		return errTrailer
	}
	if b == '\n' && bytes.HasSuffix(d.trailer, []byte("\r\n\r\n")) {
		d.state = over
	}
	return nil
}

func unhex(b byte) (digit byte, ok bool) {
	switch {
	case '0' <= b && b <= '9':
		return b - '0', true
	case 'a' <= b|0x20 && b|0x20 <= 'f':
		return b | 0x20 - 'a' + 10, true
	default:
		return 0, false
	}
}
