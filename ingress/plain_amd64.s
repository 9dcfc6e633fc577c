#include "textflag.h"

// STOPS sets the bytes of b where those of a are a quote, a backslash or a control character. With the second bit turned
// over a quote, 0x22, is 0x20, control characters stay below that, and nothing else is at most 0x20: see stops.
#define STOPS(a, b, c) \
	MOVO    a, b   \
	PCMPEQB X15, b \
	PXOR    X13, a \
	MOVO    a, c   \
	PMINUB  X14, c \
	PCMPEQB a, c   \
	POR     c, b

#define FILL(byte, x) \
	MOVQ       $byte, DX \
	MOVQ       DX, x     \
	PUNPCKLQDQ x, x

// func plainRun(p []byte) int
TEXT ·plainRun(SB), NOSPLIT, $0-32
	MOVQ p_base+0(FP), SI
	MOVQ p_len+8(FP), CX
	XORQ AX, AX
	FILL(0x0202020202020202, X13)
	FILL(0x2020202020202020, X14)
	FILL(0x5c5c5c5c5c5c5c5c, X15)

sixtyfour:
	LEAQ     64(AX), DX
	CMPQ     DX, CX
	JA       sixteen
	MOVOU   0(SI)(AX*1), X0
	STOPS(X0, X1, X2)
	MOVOU   16(SI)(AX*1), X3
	STOPS(X3, X4, X5)
	MOVOU   32(SI)(AX*1), X6
	STOPS(X6, X7, X8)
	MOVOU   48(SI)(AX*1), X9
	STOPS(X9, X10, X11)
	MOVO     X1, X0
	POR      X4, X0
	POR      X7, X0
	POR      X10, X0
	PMOVMSKB X0, BX
	TESTL    BX, BX
	JNZ      among
	MOVQ     DX, AX
	JMP      sixtyfour

among:
	PMOVMSKB X1, BX
	PMOVMSKB X4, R8
	PMOVMSKB X7, R9
	PMOVMSKB X10, R10
	SHLQ     $16, R8
	SHLQ     $32, R9
	SHLQ     $48, R10
	ORQ      R8, BX
	ORQ      R10, R9
	ORQ      R9, BX
	JMP      found

sixteen:
	LEAQ     16(AX), DX
	CMPQ     DX, CX
	JA       done
	MOVOU    (SI)(AX*1), X0
	STOPS(X0, X1, X2)
	PMOVMSKB X1, BX
	TESTL    BX, BX
	JNZ      found
	MOVQ     DX, AX
	JMP      sixteen

found:
	BSFQ BX, BX
	ADDQ BX, AX

done:
	MOVQ AX, ret+24(FP)
	RET
